"""Shares by name as people make them: the engine, the device's file, and what runs in a container; podman is played."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from waiting import engine_lives, eventually

from .stage import Aliquot, end, engine_of, engine_pid, first_line

MADE = ("share", "create", "train", "--gpu-request=.3", "--gpu-limit=.6", "--gpu-mem=4Gi")


def spec_of(command: Aliquot, name: str) -> Path:
    """The file of a share's device."""
    return command.runtime / "cdi" / f"aliquot.dev-share_{name}.json"


def play_podman(command: Aliquot, folder: Path, script: str) -> None:
    """Let the command find this as podman."""
    tool = folder / "podman"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    command.env["PATH"] = f"{folder}:{command.env['PATH']}"


def test_a_share_is_a_device_by_the_rules_of_cdi(engine: Aliquot):
    """One file of one device, readable by all, with a kind and a name that CDI takes and mounts of what there is."""
    made = engine(*MADE)

    file = spec_of(engine, "train")
    spec = json.loads(file.read_text())
    (device,) = spec["devices"]
    edits = device["containerEdits"]
    mounts = {mount["containerPath"]: mount for mount in edits["mounts"]}
    assert 0 == made.returncode, made.stderr
    assert "run --device aliquot.dev/share=train IMAGE\n" in made.stdout
    assert 0o644 == file.stat().st_mode & 0o777
    assert ("0.3.0", "aliquot.dev/share", "train") == (spec["cdiVersion"], spec["kind"], device["name"])
    assert {"env", "mounts"} == edits.keys()
    assert "ALIQUOT_TENANT=train" in edits["env"]
    assert all(Path(mount["hostPath"]).exists() for mount in mounts.values())
    assert {"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libnvidia-ml.so.1"} <= mounts.keys()
    assert "/lib/libcuda.so.1" in mounts["/usr/lib64/libcuda.so.1"]["hostPath"]
    assert [str(engine.runtime / "emulated")] == [at for at, mount in mounts.items() if "rw" in mount["options"]]


def test_a_share_has_its_part_until_it_is_deleted(engine: Aliquot):
    """It is a tenant like any other, in all lists; what it holds is free for others once it is deleted."""
    engine("share", "create", "all", "--gpu-request=1", "--gpu=0", "--enforce=all")
    refused = engine(*MADE, "--gpu=0")
    listed = engine.facts("share", "list")
    table = engine("get", "tenants").stdout
    deleted = engine("share", "delete", "all")
    made = engine(*MADE, "--gpu=0")

    assert (1, 0, 0) == (refused.returncode, deleted.returncode, made.returncode)
    assert [("all", [0], [])] == [(s["tenant"]["name"], s["tenant"]["gpus"], s["tenant"]["containers"]) for s in listed]
    assert re.search(r"^all +0 +1\.00 .* container$", table, re.MULTILINE)
    assert not spec_of(engine, "all").exists()
    assert ["train"] == [s["tenant"]["name"] for s in engine.facts("share", "list")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "1st"), "'1st' is not a name for a share; begin with a letter"),
        (("create", "team/a"), "'team/a' is not a name for a share; begin with a letter"),
        (("create", "x" * 64), "and use up to 63 letters, digits, - and _ as in train-1"),
        (("delete", "none"), 'there is no share "none"; list them: aliquot share list'),
        (("options", "none"), 'there is no share "none"; list them: aliquot share list'),
    ],
)
def test_a_wrong_name_is_refused_in_one_sentence(lasting: Aliquot, words: tuple[str, ...], said: str):
    """It says what a name is, or where those are that exist."""
    done = lasting("share", *words)

    assert (2, 1, True) == (done.returncode, done.stderr.count("\n"), said in done.stderr)


def test_a_name_is_given_once(engine: Aliquot):
    """A second share, or a share with the name of another engine's, is refused."""
    other = spec_of(engine, "theirs")
    other.parent.mkdir()
    other.write_text('{"hostPath": "/run/other/tenants/1"}')

    assert 0 == engine(*MADE).returncode
    assert "choose another name" in engine(*MADE).stderr
    assert "share theirs is that of another engine, as" in engine("share", "create", "theirs").stderr


def test_a_share_whose_device_has_no_place_is_refused_with_the_way_out(engine: Aliquot):
    """Where the file of its device cannot be written, the sentence names the folder and the variable for another."""
    spec_of(engine, "train").parent.write_text("in the way")

    refused = engine(*MADE)

    said = "could not be written (File exists); set ALIQUOT_CDI_DIR where the engine is started to a folder"
    assert (1, True) == (refused.returncode, said in refused.stderr), refused.stderr
    assert "no shares" in engine("share", "list").stderr
    assert "no tenants" in engine("get", "tenants").stderr


def test_an_engine_that_a_share_started_ends_with_it(aliquot_cli: Aliquot):
    """`share create` starts an engine, which stays as long as the share, and not longer."""
    made = aliquot_cli(*MADE, "--emulate", "v100")
    run = aliquot_cli("run", "--gpu-request=.1", "true")
    stays = aliquot_cli.engine_is_up
    deleted = aliquot_cli("share", "delete", "train")

    aliquot_cli.wait_gone()
    assert (0, 0, True, 0) == (made.returncode, run.returncode, stays, deleted.returncode)
    assert not spec_of(aliquot_cli, "train").exists()


def test_the_file_of_a_killed_engine_goes_with_the_next(aliquot_cli: Aliquot):
    """No device of an engine that is gone stays; the file of another engine does."""
    aliquot_cli(*MADE, "--emulate", "v100")
    other = spec_of(aliquot_cli, "theirs")
    other.write_text('{"hostPath": "/run/other/tenants/1"}')
    os.kill(engine_pid(aliquot_cli), signal.SIGKILL)
    eventually(lambda: not engine_lives(aliquot_cli.runtime), "the engine is dead")
    left = spec_of(aliquot_cli, "train").exists()

    with engine_of(aliquot_cli, "v100", "--no-web"):
        assert (True, False, True) == (left, spec_of(aliquot_cli, "train").exists(), other.exists())


def test_a_run_in_a_container_is_one_of_the_tool(lasting: Aliquot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The tool gets its own words after the share's options; variables pass by name, and its status is the run's."""
    monkeypatch.setitem(lasting.env, "PATH", lasting.env["PATH"])
    play_podman(lasting, tmp_path, 'printf "%s\\n" "$@"; echo "KEY is $KEY"; exit 7')

    done = lasting("run", "--gpu-request=.3", "--container=podman", "-e", "KEY=secret", "--", "--rm", "IMAGE", "a b")

    words = done.stdout.splitlines()
    assert (7, "run", ["--env", "KEY", "--rm", "IMAGE", "a b", "KEY is secret"]) == (
        done.returncode, words[0], words[-6:],
    )  # fmt: skip
    assert any(re.fullmatch(r"type=bind,source=.*/made,target=/run/aliquot.tenant,readonly", word) for word in words)
    assert "no tenants" in lasting("get", "tenants").stderr


def test_signals_reach_the_tool_of_a_run(lasting: Aliquot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A signal to the run is one to `podman run`, which passes it to the container."""
    monkeypatch.setitem(lasting.env, "PATH", lasting.env["PATH"])
    play_podman(lasting, tmp_path, 'trap "exit 5" TERM; echo on; while :; do sleep .05; done')

    process = lasting.start("run", "--gpu-request=.3", "--container=podman", "--", "IMAGE")
    assert "on\n" == first_line(process)
    end(process)

    assert 5 == process.returncode


@pytest.mark.parametrize("option", ["-d", "-itd", "--detach", "--detach=true"])
def test_a_detached_container_is_refused(lasting: Aliquot, option: str):
    """Its share would end at once; the sentence names what is for it."""
    done = lasting("run", "--container=podman", "--", "--rm", option, "IMAGE")

    said = "--container podman runs in the foreground; for a container that goes on: aliquot share create"
    assert (2, True) == (done.returncode, said in done.stderr)
