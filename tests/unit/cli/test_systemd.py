"""What the engine says to systemd, and the unit by which systemd starts it."""

import shutil
import socket
import subprocess

import pytest

from aliquot.cli.up import notify, unit


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told_of_a_state(tmp_path, monkeypatch, abstract):
    """A state goes to the socket that NOTIFY_SOCKET names, also to an abstract one."""
    address = f"@{tmp_path}/notify" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
        assert b"READY=1" == manager.recv(100, socket.MSG_DONTWAIT)


def test_without_a_service_manager_nothing_is_said(monkeypatch):
    """Neither a missing socket nor none at all is an error."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    notify("READY=1")


def test_the_unit_starts_the_engine_with_the_given_options():
    """Words of the command line are quoted as systemd reads them, and per cent signs are its own."""
    text = unit(["--system", "--quota", "/etc/a b/100%.yaml"])

    assert "-m aliquot.cli up --system --quota '/etc/a b/100%%.yaml'\n" in text
    assert {"Type=notify", "WatchdogSec=30", "KillMode=process", "RuntimeDirectory=aliquot"} <= set(text.splitlines())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed: no unit is checked")
def test_systemd_takes_the_unit(tmp_path):
    """It knows each setting, and has nothing to say about it."""
    file = tmp_path / "aliquot.service"
    file.write_text(unit(["--system", "--group", "root"]))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)

    assert (0, "") == (done.returncode, done.stdout + done.stderr)
