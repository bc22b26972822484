"""The printed table of `aliquot top` on terminals of several widths."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.cli.tables import UNBOUNDED, aligned, columns, wrapped
from aliquot.cli.top import bar, render
from aliquot.driver.gpu import Gpu
from aliquot.standalone.wire import EngineFacts
from aliquot.status.tenants import TenantStatus, WakeStatus

UUID = "GPU-0"
WHY = "GPU 0 has 0.00 free, 0.50 were asked. See who holds the rest: aliquot get tenants"


def tenant(name: str) -> TenantStatus:
    """A tenant that uses a quarter of the GPU."""
    wake = WakeStatus(5, 9.8, 19.9, 420, kept=False, allowed_ms=3.2, longest_ms=20.1, longest_by="training")
    return TenantStatus(name, 300, 600, 0.25, 0, 2048, 4096, 0, 70.6, 0.0, 0.0, 0, 1, waiting=False, wake=wake)


def shown(width: int, *names: str) -> list[str]:
    """The lines of one GPU with these tenants, while one more waits."""
    facts = EngineFacts(1, "/run/aliquot", "h100", 2, [Gpu(0, UUID, "NVIDIA H100 80GB HBM3", 81559)], 2)
    gpu = GpuStatus(UUID, None, 0.5, [tenant(name) for name in names])
    status = Status(0, 1, 2, 10_000, "fluid", 100.0, "auto", "pace", 2, [gpu])
    return render(facts, status, {"default/later": WHY}, width).splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("name", ["a", "default/notebook-of-a-team-with-a-long-name"])
def test_no_line_is_wider_than_the_terminal(width: int, name: str):
    """Whatever tenants are called, a table for a terminal of that width fits it, and all numbers are there."""
    lines = shown(width, name, "default/b")

    assert [] == [line for line in lines if len(line) > width]
    for number in ("0.30", "0.60", "0.25", "2.0 / 4.0 GiB", "71 ms", "4.0 / 79.6 GiB"):
        assert any(number in line for line in lines), number


CELLS = st.text("GPU 0.1/…é-_", max_size=50)


@given(st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=1), st.integers(20, 200))
def test_a_table_fits_a_terminal(rows: list[list[str]], width: int):
    """Long texts are cut and columns at the end left out where that has to be, and nothing is elsewhere."""
    lines, whole = list(aligned(rows, width=width)), list(aligned(rows))

    assert max(map(len, lines)) <= width
    assert lines == whole or max(map(len, whole)) > width


@given(st.text("ab -/", max_size=300), st.integers(40, 200))
def test_a_sentence_fits_a_terminal(text: str, width: int):
    """It goes on in another line, and no word is lost."""
    lines = wrapped(text, width)

    assert max(map(len, lines)) <= width
    assert "".join(text.split()) == "".join("".join(lines).split())


def test_a_path_that_is_longer_than_a_line_is_broken_behind_a_slash():
    """So no name in it is cut, unless the name alone is longer than a line."""
    path = "/opt/aliquot/lib/python3.11/site-packages/aliquot/native/emulator/libcuda.so.1"
    lines = wrapped(f"ok     emulated CUDA  {path} and {'x' * 60}", 60)
    parts = [line[22:] for line in lines]

    assert ["/opt/aliquot/lib/python3.11/", "site-packages/aliquot/native/emulator/", "libcuda.so.1 and"] == parts[:3]
    assert "x" * 38 == parts[3]


def test_bars_shrink_before_they_go():
    """On 80 columns the bars are shorter than on 200, on 60 there are none, and the use is a number on each."""
    drawn = [max(sum(cell in "█░" for cell in line) for line in shown(width, "default/b")) for width in (60, 80, 200)]

    assert 0 == drawn[0] < drawn[1] < drawn[2] == 21


@pytest.mark.parametrize(("ago_s", "said"), [(2, "busy 50 % of 10 s, in use for 2 s "), (60, "busy 50 %  ")])
def test_a_gpu_whose_tenants_are_younger_than_the_window_says_so(ago_s: int, said: str):
    """What is busy is a part of the whole window, also where nothing ran before; the line says for how long it did."""
    now_ns = 100_000_000_000
    facts = EngineFacts(1, "/run/aliquot", "h100", 2, [Gpu(0, UUID, "NVIDIA H100 80GB HBM3", 81559)], 2)
    came = msgspec.structs.replace(tenant("a"), first_grant_ns=now_ns - ago_s * 10**9)
    status = Status(now_ns, 1, 2, 10_000, "fluid", 100.0, "auto", "pace", 2, [GpuStatus(UUID, None, 0.5, [came])])

    assert said in render(facts, status, {})


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Output that goes to no terminal is not cut, unless COLUMNS says how wide it is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert UNBOUNDED == columns()

    monkeypatch.setenv("COLUMNS", "60")
    assert 60 == columns()


def test_the_limit_is_a_stroke_in_the_bar():
    """A limit below the whole GPU is marked where it is."""
    assert "██░░░│░░░░" == bar(0.2, 500, 10)
