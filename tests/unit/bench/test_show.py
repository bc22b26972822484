"""What the demonstration shows: bars, lines, table, pictures."""

import pytest

from aliquot_lab.bench import chart, notebooks, phases
from aliquot_lab.bench.fig6 import PAPER, A, B, C, Measured, Report, UsagePoint
from aliquot_lab.bench.plots import draw_fig6, title
from aliquot_lab.bench.priority import hindrance
from aliquot_lab.bench.progress import Interval


@pytest.fixture
def report() -> Report:
    """A run in which everybody got its due."""
    report = Report("Tesla V100-SXM2-16GB", emulated=True)
    for phase in PAPER.phases:
        report.phases.append(Measured(phase, dict(phase.expected), dict(phase.expected)))
        report.usage.append(UsagePoint(phase.end_s, dict(phase.expected)))
    return report


def test_a_bar_marks_the_due():
    """A full bar up to the share, a stroke where the due is."""
    assert chart.bar(0.2, 0.2, 10) == "██│░░░░░░░"
    assert chart.bar(0.6, 0.5, 10) == "█████│░░░░"


def test_the_live_picture_keeps_its_width(report):
    """Every tenant's line is as long as every other's, whatever it uses."""
    lines = chart.live(report, PAPER.phases[2], 800).splitlines()

    assert len({len(line) for line in lines[2:]}) == 1


def test_the_plain_line_names_every_tenant(report):
    """A log without a terminal shows time, phase and shares."""
    line = chart.plain(report, PAPER.phases[3], 800)

    assert all(f"{tenant} " in line for tenant in (A, B, C))
    assert "A and B again" in line


def test_the_table_ends_with_the_verdict(report):
    """The last line says whether the promise was kept."""
    assert chart.table(report).splitlines()[-1].endswith("the promise is kept.")


def test_notebooks_keep_their_width_and_end_with_a_verdict():
    """Every line is as long as every other; who did not compute twice breaks the promise."""
    seen = notebooks.NotebookReport("A100", emulated=True, gpu_gib=40.0)
    for number, (tenant, times) in enumerate(seen.results_s.items()):
        times += [0.1 * number, 1.25]
        seen.awake = {tenant}
    kept = notebooks.verdict(seen)
    seen.results_s[notebooks.NOTEBOOKS[0]].pop()

    assert 1 == len({len(line) for line in notebooks.live(seen).splitlines()[2:]})
    assert "15 of 16 uses   awake: n8" in notebooks.plain(seen)
    assert kept.endswith("the promise is kept.") and notebooks.verdict(seen).endswith("NOT kept.")


def test_phases_keep_their_width_and_end_with_a_verdict():
    """Two cycles of 12 s beside each other for two of 10 s one after the other gain 1.67; cycles of 15 s not enough."""
    seen = phases.PhaseReport("H100", emulated=True, gpu_gib=80.0)
    alone, texts = [Interval(0, at * 10**9, 0) for at in (0, 10)], [phases.live(seen)]
    for cycle_s in (12, 15):
        own = [Interval(0, at * cycle_s * 10**9, 0) for at in range(3)]
        seen.phases = {phases.TRAINER: [*alone, *own], phases.ENGINE: own}
        seen.awake = {phases.TRAINER}
        texts += [phases.live(seen), phases.verdict(seen)]

    assert 1 == len({len(line) for text in texts[::2] for line in text.splitlines()[2:]})
    assert "phases: trainer 5  engine 3   on the GPU: trainer" == phases.plain(seen)
    assert "did 1.67 times the work" in texts[2] and texts[2].endswith("the promise is kept.")
    assert "did 1.33 times the work" in texts[4] and texts[4].endswith("NOT kept.")


def test_a_busy_machine_is_named_before_the_start(monkeypatch):
    """The sentence has load and cores; a quiet machine has none."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (18.4, 0, 0))
    assert "This machine is busy (load 18 on 2 cores)" in hindrance()
    monkeypatch.setattr("os.getloadavg", lambda: (1.9, 0, 0))
    assert "" == hindrance()


def test_the_pictures_carry_the_finding(report, tmp_path):
    """SVG and PNG are written, and the title states what was found."""
    pytest.importorskip("matplotlib")

    svg, png = draw_fig6(report, tmp_path / "new")

    assert title(report) in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")
