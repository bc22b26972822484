"""What `aliquot top` sees of a real engine, and what its key for ending does there."""

import os

from waiting import eventually

from aliquot.cli.top_source import EnginePoller
from aliquot.standalone.paths import RuntimeDir

from .stage import Aliquot, sharepod


def test_top_sees_processes_queues_and_sensors(engine: Aliquot, tmp_path):
    """Tenants come with pids and command lines, runs that wait with their reason, GPUs with temperature and power."""
    run = engine.start("run", "--name", "first", "--gpus", "2", "--", "sleep", "311")
    with EnginePoller(RuntimeDir(engine.runtime)) as source:
        eventually(lambda: any(p.command == "sleep 311" for p in source().processes.get("first", [])), "first is seen")
        late = engine.start("run", "--wait", "--name", "late", "--", "true")
        eventually(lambda: [w.name for w in source().workloads if w.state == "Pending"] == ["late"], "late waits")
        reason = next(w.message for w in source().workloads if w.name == "late")
        eventually(lambda: all("°C" in text and " W" in text for text in source().sensors.values()), "sensors answer")
        eventually(lambda: len(source().sensors) == 2, "both GPUs have sensors")
        ended = source.end("first")
        run.communicate(timeout=30)
        late.communicate(timeout=30)

    assert ("run/first ended", 0) == (ended, late.returncode)
    assert reason.startswith("needs 1 whole GPU, none is free") and run.returncode > 128


def test_top_ends_a_sharepod(engine: Aliquot, tmp_path):
    """A SharePod that is ended from top is deleted with its programs."""
    (tmp_path / "a.yaml").write_text(sharepod("a", "echo $$; exec sleep 300"))
    engine("apply", str(tmp_path / "a.yaml"))
    eventually(lambda: engine("logs", "a").stdout.strip().isdigit(), "a runs")
    pid = engine("logs", "a").stdout.strip()
    with EnginePoller(RuntimeDir(engine.runtime)) as source:
        ended = source.end("default/a")

    assert ("sharepod/a deleted", False) == (ended, os.path.isdir(f"/proc/{pid}"))  # noqa: PTH112 (no file of ours)
