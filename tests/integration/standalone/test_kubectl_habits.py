"""What kubectl's users type: kinds, selectors, watches, logs, deletes and exec, on a real engine."""

import json
import re
import signal
import sys

import pytest
import yaml
from waiting import eventually

from .stage import Aliquot, Cluster, end, engine_of, first_line, sharepod

VIEW = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total >> 20)"


def labelled(name: str, namespace: str = "default", script: str = "sleep 300", **labels: str) -> str:
    """A SharePod with labels, in a namespace."""
    document = json.loads(sharepod(name, script, request=0.1, memory="512Mi"))
    document["metadata"] |= {"namespace": namespace, "labels": labels}
    return json.dumps(document)


@pytest.fixture
def three(up: Cluster) -> Cluster:
    """Three SharePods in two namespaces, with labels."""
    pods = [labelled("a", app="web"), labelled("b", app="cache"), labelled("c", "other", app="web")]
    assert 0 == up.apply("\n---\n".join(pods)).returncode
    return up


def names(up: Cluster, *words: str) -> list[str]:
    """What `get -o name` prints."""
    return up.command("get", *words, "-o", "name").stdout.split()


def test_a_kind_has_several_names(three: Cluster):
    """SharePods are listed under kubectl's words for pods, without a prefix in the namespace default."""
    for kind in ("pods", "po", "sp", "sharepod", "sharepods"):
        assert ["sharepod/a", "sharepod/b", "sharepod/other/c"] == names(three, kind), kind


def test_selectors_and_namespaces_narrow(three: Cluster):
    """-l and -n leave what has the labels and lies in the namespace; names choose one by one."""
    assert ["sharepod/a", "sharepod/other/c"] == names(three, "pods", "-l", "app in (web)")
    assert ["sharepod/other/c"] == names(three, "pods", "-n", "other")
    assert ["sharepod/b", "sharepod/a"] == names(three, "pods", "b", "a")
    assert ["sharepod/a"] == names(three, "sharepod/a")


def test_the_table_has_no_default_prefix_and_wide_says_more(three: Cluster):
    """The namespace default is left out, -A gives namespaces a column, -o wide adds UUID, pid, command and labels."""
    plain = three.command("get", "pods", "-n", "default").stdout.splitlines()
    everywhere = three.command("get", "pods", "-A").stdout.splitlines()
    wide = three.command("get", "pods", "-o", "wide").stdout

    assert ["NAME", "a", "b"] == [line.split()[0] for line in plain]
    assert [["NAMESPACE", "NAME"], ["default", "a"]] == [line.split()[:2] for line in everywhere[:2]]
    assert "app=cache" in wide and "sleep 300" in wide and "GPU-" in wide


def test_every_kind_at_once_and_yaml(three: Cluster):
    """`get all` lists SharePods, tenants and GPUs; YAML says what JSON says."""
    shown = three.command("get", "all").stdout
    facts = yaml.safe_load(three.command("get", "gpus", "-o", "yaml").stdout)

    assert all(head in shown for head in ("NAME", "TENANT", "MODEL"))
    assert three.command.facts("get", "gpus") == facts


def test_sharepods_in_yaml_can_be_applied_again(three: Cluster):
    """What `get -o yaml` prints, of one or of all, is what was applied: apply takes it and changes nothing."""
    full = json.loads(labelled("d", script="exec sleep 300", app="x"))
    full["spec"]["gpu"] |= {"limit": "50%", "antiAffinity": "noisy", "wake": "9s"}
    full["spec"]["template"]["spec"] |= {"nodeSelector": {"zone": "a"}, "terminationGracePeriodSeconds": 3}
    assert 0 == three.apply(json.dumps(full)).returncode
    one, every = (three.command("get", "sharepods", *names, "-o", "yaml").stdout for names in (["d"], []))

    assert ["default/d", "SharePod"] == [yaml.safe_load(one)["status"]["name"], yaml.safe_load(one)["kind"]]
    assert full == {key: value for key, value in yaml.safe_load(one).items() if key != "status"}
    again = three.apply(every)
    assert [f"sharepod/{name} unchanged" for name in "abcd"] == sorted(
        line.partition(" (")[0] for line in again.stdout.splitlines()
    )
    assert "sharepod/d unchanged" in three.apply(one).stdout


def test_a_name_that_does_not_exist_is_refused(three: Cluster):
    """The message lists what there is."""
    done = three.command("get", "pod", "x")

    assert (2, 'aliquot: there is no sharepod "x"; there is default/a, default/b, other/c\n') == (
        done.returncode, done.stderr,
    )  # fmt: skip


def test_a_watch_shows_changes_and_ends_with_ctrl_c(up: Cluster):
    """-w prints what is there, then each change in a row of its own; Ctrl-C ends it without a traceback."""
    up.apply(sharepod("a", "sleep 300"))
    up.wait_phase("a", "Running")
    watch = up.command.start("get", "pods", "-w")
    lines = [first_line(watch) for _ in range(2)]
    up.command("delete", "a")
    lines.append(watch.stdout.readline())
    _, err = end(watch, signal.SIGINT)

    assert [["NAME", "STATUS"], ["a", "Running"], ["a", "Deleted"]] == [line.split()[:2] for line in lines]
    assert (130, "") == (watch.returncode, err.strip())


def test_a_watch_in_json_is_an_object_a_line(up: Cluster):
    """Each change is one JSON object on a line of its own."""
    watch = up.command.start("get", "-w", "-o", "json")
    up.apply(sharepod("a", "sleep 300"))
    first = json.loads(first_line(watch))
    end(watch, signal.SIGINT)

    assert "default/a" == first["name"]


def test_logs_by_line_and_run(up: Cluster):
    """--tail cuts at lines, -p shows the run before the last start, and several SharePods are told apart."""
    up.apply(sharepod("a", "echo one; echo two", policy="Always"))
    up.apply(sharepod("b", "echo three; sleep 300"))
    eventually(lambda: up.pod("a")["restarts"] >= 1, "a was started again")
    eventually(lambda: "three" in up.command("logs", "b").stdout, "b has printed")

    assert "two\n" == up.command("logs", "a", "--tail", "1").stdout
    assert "one\ntwo\n" == up.command("logs", "a", "--previous").stdout
    assert ["[a] two", "[b] three"] == up.command("logs", "a", "b", "--tail=1").stdout.splitlines()
    assert "three\n" == up.command("logs", "b", "--since", "10m").stdout
    assert 2 == up.command("logs", "b", "-p").returncode


def test_followed_logs_end_with_the_program(up: Cluster):
    """`logs -f` ends when the container has ended for good, with everything it printed."""
    up.apply(sharepod("a", "echo one; sleep 0.5; echo two"))
    done = up.command("logs", "-f", "a")

    assert (0, "one\ntwo\n") == (done.returncode, done.stdout)


def test_interrupted_logs_end_as_other_commands_do(up: Cluster):
    """Ctrl-C ends `logs -f` with 130 and no words."""
    up.apply(sharepod("a", "echo one; sleep 60"))
    following = up.command.start("logs", "-f", "a")
    assert "one\n" == first_line(following)
    following.send_signal(signal.SIGINT)

    out, err = following.communicate(timeout=60)

    assert (130, "", "") == (following.returncode, out, err.strip())


def test_a_time_to_look_back_that_is_none_is_named(up: Cluster):
    """`recommend --since` names the option, the value and what is allowed, whatever the engine records."""
    refused = up.command("recommend", "--since", "soon")

    said = 'aliquot: --since "soon" is unknown; write 15m to 30d, such as 24h or 7d\n'
    assert (2, said) == (refused.returncode, refused.stderr)


def test_deleting_by_labels_files_and_namespaces(three: Cluster):
    """-l ends what has the labels, --all what is in the namespace; other namespaces only with -n or -A."""
    assert "sharepod/a deleted\n" == three.command("delete", "-l", "app=web").stdout
    assert "sharepod/b deleted\n" == three.command("delete", "--all").stdout
    assert "no sharepods to delete in namespace default\n" == three.command("delete", "--all").stdout
    assert "sharepod/c deleted\n" == three.command("delete", "--all", "-A").stdout
    assert [] == names(three)


def test_apply_takes_a_file_without_the_flag(up: Cluster, tmp_path):
    """`apply FILE` is `apply -f FILE`."""
    (tmp_path / "one.yaml").write_text(sharepod("a", "sleep 300", request="30%"))
    done = up.command("apply", str(tmp_path / "one.yaml"))

    assert (0, "sharepod/a created\n") == (done.returncode, done.stdout)
    assert 300 == up.pod("a")["request_milli"]


def test_exec_runs_in_the_containers_place(up: Cluster):
    """exec sees the container's GPU, its memory limit, its environment and its folder, and passes the status on."""
    document = json.loads(sharepod("a", "sleep 300", request=0.3, memory="1Gi"))
    document["spec"]["template"]["spec"]["containers"][0] |= {
        "env": [{"name": "COLOUR", "value": "red"}], "workingDir": "/usr"
    }  # fmt: skip
    up.apply(json.dumps(document))
    index = up.wait_phase("a", "Running")["gpus"][0]
    told = up.command("exec", "a", "--", "sh", "-c", "echo $COLOUR $CUDA_VISIBLE_DEVICES; pwd; exit 7")
    memory = up.command("exec", "a", "-it", "-c", "main", "--", sys.executable, "-c", VIEW)

    assert (7, f"red {index}\n/usr\n") == (told.returncode, told.stdout)
    assert "1024\n" == memory.stdout, memory.stderr


def test_exec_ends_with_its_container(up: Cluster):
    """A program that exec has started does not outlive the SharePod."""
    up.apply(sharepod("a", "sleep 300"))
    up.wait_phase("a", "Running")
    other = up.command.start("exec", "a", "--", "sh", "-c", "echo ready; exec sleep 300")
    assert "ready\n" == first_line(other)
    up.command("delete", "a")
    other.communicate(timeout=30)

    assert other.returncode > 128


def test_exec_needs_a_program_that_runs(up: Cluster):
    """A SharePod that has ended has no place to run in."""
    up.apply(sharepod("a", "true"))
    up.wait_phase("a", "Succeeded")
    done = up.command("exec", "a", "--", "true")

    assert (1, True) == (done.returncode, "does not run (Terminated)" in done.stderr)


def test_exec_in_a_run_by_its_name(up: Cluster):
    """A single run is entered by the tenant's name."""
    run = up.command.start("run", "--name", "train", "--gpu-request", ".5", "--", "sh", "-c", "echo up; exec sleep 300")
    assert "up\n" == first_line(run)
    memory = up.command("exec", "train", "--", sys.executable, "-c", VIEW)
    end(run)

    assert "8192\n" == memory.stdout, memory.stderr


def test_the_view_of_nvidia_smi_is_the_tenants(up: Cluster):
    """Under an emulated GPU a program finds nvidia-smi on its PATH, which prints the tenant's memory and its GPU."""
    run = ("run", "--gpu", "0", "--gpu-request", ".25", "--gpu-mem", "4Gi", "--")
    query = "nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader,nounits"
    shown = up.command(*run, "sh", "-c", f"nvidia-smi -L -i 0; {query} -i 0; nvidia-smi")

    listed, values, *table = shown.stdout.splitlines()
    assert re.fullmatch(r"GPU 0: Tesla V100-SXM2-16GB \(UUID: GPU-[0-9a-f-]+\)", listed), shown.stderr
    assert "0, Tesla V100-SXM2-16GB, 4096" == values
    assert any("MiB /   4096MiB" in line for line in table) and any("emulated" in line for line in table)


def test_nvidia_smi_lists_the_tenants_gpus_alone(up: Cluster):
    """Of several GPUs nvidia-smi shows those of the tenant, by the numbers in its CUDA_VISIBLE_DEVICES."""
    query = "nvidia-smi --query-gpu=index,count,uuid --format=csv,noheader"
    mine = f"{query} -i $CUDA_VISIBLE_DEVICES; nvidia-smi -L"
    shown = up.command("run", "--gpu", "1", "--gpu-request", ".25", "--", "sh", "-c", mine)
    every = up.command("run", "--gpus", "2", "--", "sh", "-c", query)
    uuids = [gpu["uuid"] for gpu in up.command.facts("get", "gpus")]

    values, *listed = shown.stdout.splitlines()
    assert f"1, 1, {uuids[1]}" == values, shown.stderr
    assert [f"GPU 1: Tesla V100-SXM2-16GB (UUID: {uuids[1]})"] == listed
    assert [f"0, 2, {uuids[0]}", f"1, 2, {uuids[1]}"] == every.stdout.splitlines()


def test_a_real_nvidia_smi_is_not_hidden(up: Cluster, tmp_path):
    """Where PATH has an nvidia-smi already, that one runs."""
    real = tmp_path / "nvidia-smi"
    real.write_text("#!/bin/sh\necho real\n")
    real.chmod(0o755)
    path = f"{tmp_path}:{up.command.env['PATH']}"
    done = up.command("run", "--", "nvidia-smi", env=up.command.env | {"PATH": path})

    assert "real\n" == done.stdout


def test_nvidia_smi_refuses_what_it_does_not_know(up: Cluster):
    """A field that does not exist is named, with those that do."""
    done = up.command("run", "--", "nvidia-smi", "--query-gpu=speed", "--format=csv")

    assert (2, True) == (done.returncode, 'Field "speed" is not a valid field to query' in done.stderr)


def test_a_watch_ends_with_the_engine(aliquot_cli: Aliquot):
    """When the engine stops, a watch says so and ends."""
    with engine_of(aliquot_cli, "v100", "--no-web"):
        watch = aliquot_cli.start("get", "gpus", "-w")
        assert first_line(watch).startswith("GPU")
    _, err = watch.communicate(timeout=20)

    assert (0, "aliquot: the engine has ended\n") == (watch.returncode, err)


def test_top_begins_with_what_waits(up: Cluster):
    """`top` lists what waits before the GPUs, and its JSON has the reasons and the tenants' process ids."""
    up.apply(sharepod("big", "sleep 300", request=2))
    pod = up.wait_phase("big", "Running")
    up.apply(sharepod("later", "sleep 300", request=1))
    shown = up.command("top", "--once").stdout.splitlines()
    facts = up.command.facts("top")

    assert "1 waiting" == shown[0] and shown[1].startswith("  default/later  ")
    assert ["default/later"] == [each["name"] for each in facts["waiting"]]
    assert pod["containers"][0]["pid"] in facts["gpus"][0]["tenants"][0]["pids"]
