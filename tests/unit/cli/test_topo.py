"""`aliquot topo`: the picture, the best set, and what is said about mistakes."""

import io
import json
import sys

import pytest
from matrices import FOLDER, SHORT, WHOLE, text_of

from aliquot.cli import main as program
from aliquot.cli.topo import BadUse, read_used

TENCENT = str(FOLDER / "tencent_test_6gpu.txt")


@pytest.fixture
def topo(monkeypatch, capsys, tmp_path):
    """Runs the command in this process; gives exit status, output and errors."""
    monkeypatch.setenv("ALIQUOT_RUNTIME_DIR", str(tmp_path / "none"))

    def run(*words: str, stdin: str = ""):
        monkeypatch.setattr(sys, "argv", ["aliquot", "topo", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            program.main()
        seen = capsys.readouterr()
        return ended.value.code, seen.out, seen.err

    return run


def test_the_tree_is_drawn_with_what_is_free(topo):
    """Each node has its cost and how many GPUs below are wholly free; each GPU what is left of it."""
    _, out, _ = topo(TENCENT, "--used", "0,3=250")

    assert [line.split() for line in out.splitlines()[3:9]] == [
        ["SYS", "6000", "4", "of", "6"],
        ["├─", "PHB", "4000", "2", "of", "4"],
        ["│", "├─", "PIX", "2000", "1", "of", "2"],
        ["│", "│", "├─", "GPU", "0", "2000", "taken"],
        ["│", "│", "└─", "GPU", "1", "2000", "free"],
        ["│", "└─", "PIX", "2000", "1", "of", "2"],
    ]
    assert "GPU 3  2000  0.75 free" in out


@pytest.mark.parametrize("name", WHOLE)
def test_every_real_machine_is_drawn(topo, name):
    """Every matrix can be shown, as text and as JSON."""
    code, out, _ = topo(str(FOLDER / f"{name}.txt"))
    told = json.loads(topo(str(FOLDER / f"{name}.txt"), "-o", "json")[1])

    assert 0 == code
    assert all(f"GPU {gpu['index']} " in out for gpu in told["gpus"])


def test_the_best_set_is_named_with_what_it_leaves(topo):
    """`--best` tells the set, its cost and links, and the nearest sets that stay free."""
    _, out, _ = topo(TENCENT, "--best", "2")

    assert out.splitlines()[-4:] == [
        "Best 2: GPU 4, 5   cost 2000 (PIX)",
        "Leaves GPU 0, 1, 2, 3; of these",
        "  nearest 2: GPU 0, 1   cost 2000 (PIX)",
        "  nearest 4: GPU 0, 1, 2, 3   cost 20000 (2 x PIX, 4 x PHB)",
    ]


def test_taken_gpus_are_never_chosen(topo):
    """A GPU that is used, whole or in part, is not a part of a best set."""
    told = json.loads(topo(TENCENT, "--used", "4,0=1", "--best", "2", "-o", "json")[1])

    assert [2, 3] == told["best"]["gpus"]


def test_a_mesh_shows_what_its_tree_can_not(topo):
    """On a DGX-1V the links between the two boards are listed below the tree."""
    _, out, _ = topo("--emulate", "v100x8")

    assert "  NV2: 0-4, 1-5, 2-3, 6-7" in out.splitlines()


def test_a_matrix_is_read_from_stdin(topo):
    """`-` is stdin, so that nvidia-smi can be piped in."""
    _, out, _ = topo("-", stdin=text_of("h20_4gpu"))

    assert out.startswith("stdin: 4 GPUs, 4 free")


def test_json_has_a_list_of_gpus(topo):
    """Programs find in `gpus` the index, node, cores, what is left, and links and costs to every other GPU."""
    told = json.loads(topo("--emulate", "v100x4", "--used", "3=400", "-o", "json")[1])

    assert 4 == told["count"] == len(told["gpus"])
    assert {
        "index": 3,
        "free_milli": 600,
        "numa": 0,
        "model": "Tesla V100-SXM2-16GB",
        "cores": "0-19,40-59",
        "access_cost": 500,
        "links": ["NV2", "NV1", "NV2", "X"],
        "costs": [500, 1000, 500, 0],
        "nearest": [0, 2, 1],
    } == told["gpus"][3]
    assert ([3], [0, 1, 2]) == (told["fragments"], told["free"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([str(FOLDER / f"{SHORT}.txt")], "rows GPU5, GPU6, GPU7 are missing"),
        (["/nonexistent.txt"], "/nonexistent.txt cannot be read: no such file or directory"),
        (["/"], "/ cannot be read: is a directory"),
        (["/dev/zero"], "is longer than 1048576 characters"),
        ([sys.executable], "is not text; give what nvidia-smi topo -m printed"),
        (["-"], "stdin: there is no matrix in this text"),
        ([TENCENT, "--emulate", "v100"], "are two machines; give one of them"),
        (["--emulate", "voodoo2"], "known are"),
        ([TENCENT, "--best", "7"], "--best 7 GPUs: 6 of 6 are wholly free; ask for 1 to 6"),
        ([TENCENT, "--best", "0"], "ask for 1 to 6"),
        ([TENCENT, "--best", "-1"], "ask for 1 to 6"),
        ([TENCENT, "--best", "two"], "'two' is not a valid integer"),
        ([TENCENT, "--used", "6"], '--used: "6" names no GPU of this machine, which has 0 to 5'),
        ([TENCENT, "--used", "0,,1"], '--used: "" names no GPU'),
        ([TENCENT, "--used", "1,1=5"], "GPU 1 is named twice"),
        ([TENCENT, "--used", "1=1001"], "takes 1001 milli of a GPU; take 1 to 1000"),
        ([TENCENT, "--used", "1=nan"], '"nan" is not a fraction of a GPU'),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(topo, words, sentence):
    """Bad input ends with status 2, one line that says what is wrong, and nothing on stdout."""
    code, out, err = topo(*words)

    assert (2, "", 1) == (code, out, len(err.splitlines()))
    assert err.startswith("aliquot: ") and sentence in err


def test_amounts_are_milli_or_fractions():
    """A bare index is a whole GPU; an amount is milli-GPU, a decimal fraction, or carries an m."""
    assert {0: 1000, 1: 250, 2: 500, 3: 300} == read_used("0, 1=250, 2=0.5, 3=300m", 4)


@pytest.mark.parametrize("text", ["1=", "=5", "1=0", "1=-5", "1=1e3", "one", "1==2", "１"])
def test_odd_amounts_are_refused(text):
    """Whatever is no index and amount is refused, not guessed."""
    with pytest.raises(BadUse):
        read_used(text, 4)
