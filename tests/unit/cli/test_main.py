"""The command line before any engine is involved."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import aliquot.cli as aliquot_cli
import aliquot_lab.cli as lab_cli
from aliquot.cli.main import COMMANDS, LAB, cli
from aliquot.cli.top import BAR_CELLS, bar
from aliquot.driver.emulation import PROFILES
from aliquot.model import extras
from aliquot.model.errors import UserError
from aliquot.model.extras import EXTRAS, installed

ENGINE_FREE_COMMANDS = [name for name in (*COMMANDS, *LAB) if name != "arbiter"]


def aliquot(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command and keep what it says."""
    return subprocess.run(
        [sys.executable, "-m", "aliquot.cli", *words], capture_output=True, text=True, timeout=60, env=os.environ | env
    )


def test_help_imports_nothing_heavy():
    """`aliquot --help` loads no table, plot, array or YAML library."""
    code = (
        "import sys; from aliquot.cli.main import cli; cli.main(['--help'], standalone_mode=False);"
        "print(sorted({'rich', 'numpy', 'yaml', 'pynvml', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ENGINE_FREE_COMMANDS)
def test_every_command_in_the_table_has_help(command):
    """Every command that --help lists can be imported and explains itself."""
    done = aliquot(command, "--help")

    assert (0, True) == (done.returncode, done.stdout.startswith(f"Usage: aliquot {command}"))


@pytest.mark.parametrize("group", ["demo", "sim", "bench"])
def test_a_group_lists_its_commands_with_whole_sentences(group):
    """No line of the list ends at an abbreviation or in the middle of a sentence."""
    listed = aliquot(group, "--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]

    assert "..." not in listed
    assert all(re.search(r"[^g]\.$", " ".join(text.split())) for text in re.split(r"\n  (?=\S)", listed))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--gpu-request", ".5", "--gpu-limit", ".3", "--", "true"], "a limit is at least the request"),
        (["run", "--gpu-request", "lots", "--", "true"], '--gpu-request: "lots" is not a fraction of a GPU'),
        (["run", "--emulate", "voodoo2", "--", "true"], "known are"),
        (["run", "--emulate", "v100x99", "--", "true"], "no emulated machine 'v100x99'; a machine has 1 to 16"),
        (["run", "--gpus", "9" * 20, "--", "true"], "Invalid value for '--gpus'"),
        (["run", "--cpu-bind", "99999", "--emulate", "v100", "--", "true"], "ask for at most those"),
        (["run"], "Missing argument"),
        (["run", "--recommend", "initial", "--", "true"], "recommend initial is for a part of one GPU, below 1"),
        (["up", "--recommend", "initial", "--no-web"], "--recommend initial needs what the dashboard records"),
        (["run", "--name", "a\nlibcuda=/x", "--", "true"], "--name: 'a\\nlibcuda=/x' is not a name for a tenant"),
        (["apply", "-f", "/nonexistent.yaml"], "/nonexistent.yaml cannot be read: no such file or directory"),
        (["run", "--gpu-id", "../x", "--", "true"], '--gpu-id: "../x" is not a label; use up to 63 letters'),
        (["explain", "nightly", "--gpu-limit", ".3"], "--gpu-limit is of a request that you think of"),
        (["up", "--emulate", "v100", "-f", os.devnull], f"there is no SharePod in {os.devnull}"),
        (["frobnicate"], "No such command 'frobnicate'. See"),
        (["rnu"], "No such command 'rnu'. Did you mean run?"),
        (["run", "--no-such-option"], "No such option"),
        (["delete"], "delete takes names, files with -f, labels with -l, or --all; give one of them"),
        (["delete", "--all", "a"], "give one of them"),
        *(([word], "start it anew: aliquot apply --restart") for word in ("edit", "patch", "scale")),
        *(([word, "a"], "start it anew: aliquot apply --restart") for word in ("restart", "rollout")),
        (["resize"], "Missing argument"),
        (["resize", "a"], "resize needs a new size: --gpu-request, --gpu-limit, --gpu-mem or --gpu-mem-limit"),
        (["ps"], "No such command 'ps'. Did you mean get?"),
        (["gte"], "No such command 'gte'. Did you mean get?"),
        (["stop"], "No such command 'stop'. Did you mean down?"),
        (["get", "shareposd"], '"shareposd" is no kind of resource; did you mean sharepod'),
        (["get", "nodes"], "an engine is of one machine; its GPUs are listed by aliquot get gpus"),
        (["get", "volumes"], '"volumes" is no kind of resource; list sharepods, tenants, gpus, hours or all'),
        (["get", "--wathc"], "Did you mean"),
        (["get", "-l", "a=b=c"], 'selector "a=b=c": "a=b=c" is no condition on a label'),
        (["get", "gpus", "-n", "x"], "-n is for sharepods; gpus have no namespaces and no labels"),
        (["get", "all", "-w"], "-w watches one kind"),
        (["logs", "a", "-p", "-f"], "it cannot be followed with -f"),
        (["logs", "a", "--since", "soon"], '--since: "soon" is not a duration; write 10m, 1h30m or 90s'),
        (["apply"], "apply needs a file: aliquot apply -f FILE"),
        (["run", "--gpu-mem", "0%", "--", "true"], "is not allowed; write more than 0%, and 100% at most"),
        (["run", "--gpus", "2", "--gpu-mem", "400Mi", "--", "true"], "--gpu-mem 400 MiB limits the memory of one GPU"),
        (["run", "--gpus", "2", "--gpu-request", ".5", "--", "true"], "give one of them"),
        (["run", "--env", "=x", "--", "true"], '--env "=x" is no variable; write NAME=VALUE'),
        (
            ["run", "--env-file", "/dev/zero", "--", "true"],
            "--env-file /dev/zero cannot be read: it is longer than 16 MiB",
        ),
        (
            ["run", "--env-file", "/nonexistent", "--", "true"],
            "--env-file /nonexistent cannot be read: no such file or directory",
        ),
        (["run", "--cwd", "/nonexistent", "--", "true"], "--cwd /nonexistent is not a folder"),
        (["run", "--timeout", "0", "--", "true"], '--timeout: "0" is not between nothing and a year'),
        (["up", "--emulate", "v100", "--state-dir", os.devnull], f"--state-dir {os.devnull} cannot be written"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_status_2(words, sentence, tmp_path):
    """A mistake of the user's ends with status 2 and one line that begins with the program's name."""
    done = aliquot(*words, ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert done.returncode == 2
    assert sentence in done.stderr
    assert (1, True) == (len(done.stderr.splitlines()), done.stderr.startswith("aliquot: "))


LONG = "x" * 3000


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--name", LONG, "--", "true"],
        ["run", "--emulate", LONG, "--", "true"],
        ["run", "--gpu-request", LONG, "--", "true"],
        ["run", "--gpu-mem", LONG, "--", "true"],
        ["run", "--affinity", LONG, "--", "true"],
        ["run", "--env", f"={LONG}", "--", "true"],
        ["run", "--env-file", LONG, "--", "true"],
        ["run", "--cwd", LONG, "--", "true"],
        ["apply", "-f", LONG],
        ["get", LONG],
        ["get", "sharepod", LONG],
        ["describe", LONG],
        ["logs", LONG],
        ["exec", LONG, "--", "true"],
        ["delete", LONG],
        ["explain", LONG],
        ["convert", "-f", LONG],
        ["doctor", "--node", "--config", LONG],
        ["topo", LONG],
        ["up", "--emulate", "v100", "--policy", LONG],
        ["up", "--emulate", "v100", "--only-gpus", LONG],
        ["sim", "run", "--trace", LONG],
        ["bench", "shares", "--mix", LONG],
        [LONG],
        [f"--{LONG}"],
    ],
    ids=lambda words: " ".join(word[:20] for word in words),
)
def test_a_long_value_is_cut_in_errors(words, tmp_path):
    """A value of thousands of characters is quoted by its beginning and its end, in one line that can be read."""
    done = aliquot(*words, ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert done.returncode in (1, 2)
    assert done.stderr.startswith("aliquot: ") and 1 == len(done.stderr.splitlines())
    assert 800 > len(done.stderr), done.stderr


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "words",
    [
        ["up", "--emulate", "h100", "--no-web", "--window"],
        ["top", "--once", "--interval"],
        ["node", "--health-period-s"],
        ["sim", "turns", "--seconds"],
        ["sim", "paper", "churn", "--load"],
        ["sim", "paper", "fgd", "--within"],
        ["bench", "handover", "--seconds"],
        ["bench", "turns", "--seconds"],
        ["bench", "fig5", "--rate"],
    ],
    ids=" ".join,
)
def test_a_number_without_an_end_is_refused(words, text):
    """NaN and infinity are refused in one sentence that names the option, the value and what is allowed."""
    done = CliRunner().invoke(cli, [*words, text])

    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(f"{words[-1]} {text} must be a finite number ")


def test_no_option_takes_click_s_own_numbers():
    """No command has an option of click's floats, which take NaN."""
    sources = [path for package in (aliquot_cli, lab_cli) for path in Path(package.__file__).parent.rglob("*.py")]

    assert not [s.name for s in sources if re.search(r"type=float|click\.FLOAT|FloatRange", s.read_text("utf-8"))]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1, 2", "not readable as YAML: line 1"),
        ("", "there is no SharePod in "),
        ("just text", "a SharePod is a mapping"),
        ("apiVersion: aliquot.dev/v1alpha1\nkind: SharePod\nmetadata: {name: a}\nspec: {gpu: {reqest: 1}}", "reqest"),
    ],
)
def test_a_file_that_is_no_sharepod_is_refused_without_an_engine(text, sentence, tmp_path):
    """Bad YAML is told as such whether or not an engine is up."""
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    done = aliquot("apply", "-f", str(file), ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert (2, True, 1) == (done.returncode, sentence in done.stderr, len(done.stderr.splitlines()))


@pytest.mark.parametrize("words", [["get"], ["top"], ["logs", "a"], ["describe", "a"], ["delete", "a"]])
def test_without_an_engine_the_way_to_one_is_told(words, tmp_path):
    """What needs an engine says how to start one and ends with status 1."""
    done = aliquot(*words, ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert (1, True) == (done.returncode, "start one: aliquot up" in done.stderr)


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
from aliquot.cli.{program} import main
sys.argv = ["aliquot", *{words}]
main()
"""


@pytest.mark.parametrize(
    ("program", "words", "extra"),
    [
        ("main", ["scheduler"], "cluster"),
        ("main", ["node", "--emulate", "h100"], "cluster"),
        ("main", ["doctor", "--node"], "cluster"),
        ("kubectl", ["get", "gpus"], "cluster"),
        ("kubectl", ["top"], "cluster"),
        ("kubectl", ["doctor"], "cluster"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(program, words, extra, tmp_path):
    """Without an optional part of the package its commands say how to get it."""
    modules = {module for names in EXTRAS.values() for module in names}
    code = BLOCKED.format(modules=modules, program=program, words=words)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=os.environ
    )

    assert (1, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
    assert f"make -C {Path(__file__).parents[3]} setup EXTRAS={extra}" in done.stderr


@pytest.mark.parametrize("words", [["sim", "run"], ["bench", "gate"], ["demo", "fig6"], ["demo", "--help"]])
def test_without_the_laboratory_its_commands_say_what_to_install(words, tmp_path):
    """Where aliquot-lab is not installed its commands end with status 2 and one sentence, and --help lists none."""
    hidden = (
        "import importlib.metadata as m; real = m.entry_points;"
        "m.entry_points = lambda **of: [] if of == {'group': 'aliquot.commands'} else real(**of);"
        "import sys; from aliquot.cli.main import main; sys.argv = ['aliquot', *%r]; main()"
    )
    done, listed = (
        subprocess.run([sys.executable, "-c", hidden % w], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        for w in (words, ["--help"])
    )
    sentence = f"{words[0]} comes with aliquot-lab, which is not installed: make -C {Path(__file__).parents[3]} setup"

    assert (2, f"aliquot: {sentence}\n") == (done.returncode, done.stderr)
    assert set() == set(LAB) & set(listed.stdout.split())


def test_a_package_whose_commands_cannot_be_loaded_is_named(tmp_path):
    """A broken package is one sentence, and costs the commands of the core nothing."""
    (tmp_path / "torn-1.dist-info").mkdir()
    (tmp_path / "torn-1.dist-info" / "METADATA").write_text("Name: torn\nVersion: 1\n")
    (tmp_path / "torn-1.dist-info" / "entry_points.txt").write_text("[aliquot.commands]\ntorn = torn.nowhere\n")

    listed, explained = (aliquot(*words, PYTHONPATH=str(tmp_path)) for words in (["--help"], ["topo", "--help"]))

    sentence = "the commands of torn.nowhere cannot be loaded (No module named 'torn'); install it again"
    assert (1, f"aliquot: {sentence}\n") == (listed.returncode, listed.stderr)
    assert 0 == explained.returncode


def test_every_optional_dependency_belongs_to_an_extra():
    """The modules of all extras can be found where all extras are installed."""
    assert {"cluster": True, "otel": True, "top": True} == {extra: installed(extra) for extra in EXTRAS}


@pytest.mark.parametrize("words", [["--help"], ["topo", "--emulate", "h100x2"], ["convert", "-f", "{pod}"]])
def test_a_full_disk_behind_stdout_is_one_sentence(words, tmp_path):
    """What cannot be written ends the command with a sentence and status 1."""
    (tmp_path / "pod.yaml").write_text("kind: Pod\n")
    words = [word.format(pod=tmp_path / "pod.yaml") for word in words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "aliquot.cli", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )

    assert (1, "aliquot: no space left on device\n") == (done.returncode, done.stderr)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_without_gpu_and_emulation_the_emulation_is_offered(tmp_path):
    """A run on a machine without a driver says so and offers an emulated GPU."""
    done = aliquot("run", "--", "true", ALIQUOT_RUNTIME_DIR=str(tmp_path / "r"))

    assert (1, True) == (done.returncode, "--emulate h100" in done.stderr)


@pytest.mark.parametrize(("usage", "limit"), [(0.0, 300), (0.5, 1000), (1.0, 999), (1.2, 1000)])
def test_a_bar_is_always_as_wide(usage, limit):
    """The usage bar keeps its width while it refreshes."""
    assert len(bar(usage, limit)) == BAR_CELLS


def test_a_suggested_gpu_runs_programs_of_todays_cuda():
    """Wherever a message offers an emulated GPU for a run, that GPU has what CUDA 13 asks for at least: 7.5."""
    sources = Path(extras.__file__).parents[2].rglob("*.py")
    offer = re.compile(r"--emulate ([a-z0-9-]+?)(?:x[0-9]+)?\b")
    lines = (line for path in sources for line in path.read_text().splitlines() if "topo" not in line)
    offered = {PROFILES[word] for line in lines for word in offer.findall(line) if word in PROFILES}

    assert PROFILES["h100"] in offered
    assert [] == [p.name for p in offered if tuple(map(int, p.compute_capability.split("."))) < (7, 5)]
