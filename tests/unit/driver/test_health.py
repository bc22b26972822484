"""When a GPU is unhealthy, and what makes it healthy again."""

from types import SimpleNamespace

import pytest

from aliquot.driver.health import SETTLED_S, Watch


class Error(Exception):
    """As pynvml's own error."""


class TimedOut(Error):
    """Nothing happened."""


class FakeNvml:
    """pynvml with two GPUs: who is lost, which XIDs come next, what the driver asks for and who runs."""

    NVMLError, NVMLError_Timeout = Error, TimedOut
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_SUCCESS = 230, 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.xids: list[tuple[int, int]] = []
        self.action: dict[int, int] | None = None
        self.pids: dict[int, list[int]] = {}
        self.opened = 0

    def nvmlInit(self):  # noqa: N802  pynvml's own names, here and below
        self.opened += 1

    def nvmlShutdown(self):  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self._answering(index)

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return self._answering(handle)

    def nvmlEventSetCreate(self):  # noqa: N802
        return "set"

    def nvmlDeviceRegisterEvents(self, handle, kind, events):  # noqa: N802
        self._answering(handle)

    def nvmlEventSetWait_v2(self, events, wait_ms):  # noqa: N802
        if not self.xids:
            raise TimedOut
        gpu, xid = self.xids.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid)

    def nvmlDeviceGetFieldValues(self, handle, fields):  # noqa: N802
        if self.action is None:
            raise Error("Not Supported")
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.action.get(handle, 0)))]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(handle, [])]

    def _answering(self, gpu):
        if gpu in self.lost:
            raise Error("GPU is lost")
        return gpu


class Scene:
    """A watch of that driver with a clock of its own; `round` is what the process does again and again."""

    def __init__(self) -> None:
        self.nvml = FakeNvml()
        self.now_s = 0.0
        self.notes: list[str] = []

    def open(self) -> Watch:
        self.watch = Watch(self.nvml, self.notes.append, lambda: self.now_s)
        self.watch.update()
        return self.watch

    def round(self) -> dict[str, str]:
        self.watch.wait()
        self.watch.reopen()
        self.watch.update()
        return self.watch.unhealthy


@pytest.fixture
def scene() -> Scene:
    """Two GPUs that are well."""
    return Scene()


def test_one_lost_gpu_takes_no_other_along(scene: Scene):
    """A GPU that is lost while watched is unhealthy, the other is not, and healthy when it answers again."""
    scene.open()
    scene.nvml.lost = {1}
    assert {"GPU-1": "does not answer (GPU is lost)"} == scene.round()
    assert ["GPU-0"] == scene.watch.gpus

    scene.nvml.lost = set()
    assert {} == scene.round()


def test_a_gpu_that_was_lost_before_is_named_and_seen_when_it_returns(scene: Scene):
    """It has no UUID as long as it does not answer; the others are watched meanwhile."""
    scene.nvml.lost = {0}
    scene.open()
    assert "GPU 0 does not answer: GPU is lost" in scene.notes
    assert ["GPU-1"] == scene.watch.gpus

    scene.nvml.lost = set()
    scene.round()
    assert ["GPU-0", "GPU-1"] == scene.watch.gpus


def test_an_error_of_a_program_makes_no_gpu_unhealthy(scene: Scene):
    """A page fault (XID 31) is the program's own."""
    scene.open()
    scene.nvml.xids = [(0, 31)]

    assert {} == scene.round()


def test_a_contained_error_ends_with_the_programs_that_it_hit(scene: Scene):
    """After XID 94 a GPU is well when the programs that were on it have ended, whoever comes later."""
    scene.nvml.pids = {0: [10, 11]}
    scene.open()
    scene.nvml.xids = [(0, 94)]
    assert {"GPU-0": "XID 94"} == scene.round()

    scene.nvml.pids = {0: [11, 12]}
    assert {"GPU-0": "XID 94"} == scene.round()
    scene.nvml.pids = {0: [12]}
    assert {} == scene.round()


def test_a_reset_is_seen_by_a_gpu_that_went_and_came(scene: Scene):
    """A driver that knows no recovery actions shows a reset by not answering meanwhile."""
    scene.open()
    scene.nvml.xids = [(0, 79)]
    assert {"GPU-0": "XID 79"} == scene.round()
    scene.now_s += 1000
    assert {"GPU-0": "XID 79"} == scene.round()

    scene.nvml.lost = {0}
    scene.round()
    scene.nvml.lost = set()
    assert {} == scene.round()


def test_a_reset_is_seen_by_what_the_driver_asks_for(scene: Scene):
    """A GPU is unhealthy as long as the driver asks for a recovery action, and healthy when that is done."""
    scene.nvml.action = {}
    scene.open()
    scene.nvml.xids, scene.nvml.action = [(0, 95)], {0: 1}
    assert {"GPU-0": "XID 95"} == scene.round()
    scene.now_s += 1000
    assert {"GPU-0": "XID 95"} == scene.round()

    scene.nvml.action = {}
    assert {} == scene.round()


def test_a_driver_that_asks_for_nothing_is_believed_after_a_while(scene: Scene):
    """An XID after which the driver wants no recovery ends when that has settled."""
    scene.nvml.action = {}
    scene.open()
    scene.nvml.xids = [(0, 63)]
    assert {"GPU-0": "XID 63"} == scene.round()

    scene.now_s += SETTLED_S + 1
    assert {} == scene.round()


def test_a_recovery_action_alone_makes_a_gpu_unhealthy(scene: Scene):
    """Also one that the driver asked for before anybody watched."""
    scene.nvml.action = {1: 4}

    assert {"GPU-1": "the driver asks for a reset of the GPU when it is empty"} == scene.open().unhealthy


def test_the_administrators_word_ends_what_cannot_be_seen(scene: Scene):
    """XIDs are forgotten, also those that an earlier watcher saw; a GPU that is lost stays unhealthy."""
    watch = scene.open()
    watch.know({"GPU-0": "XID 79, XID 95", "GPU-1": "does not answer (GPU is lost)"})
    scene.nvml.lost = {1}
    assert {"GPU-0", "GPU-1"} == scene.round().keys()

    watch.well(["GPU-0", "GPU-1"])

    assert {"GPU-1"} == scene.round().keys()
