"""vGPUs by name and by device: the watch, and above it what our own writes answered."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kube.custom import VGPU
from aliquot.kube.reflector import Change
from aliquot.scheduler.operator.vgpus import WriteThroughCache

NAMES, DEVICES = ("a", "b", "c"), ("", "GPU-0", "GPU-1")


def vgpu(name: str, version: int, uuid: str) -> VGPU:
    """One version of a vGPU."""
    metadata = {"name": name, "resourceVersion": str(version)}
    body = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"uuid": uuid}}
    return msgspec.convert(body, VGPU)


class Watch(dict[str, VGPU]):
    """What a watch has shown, by name."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.values())


class Plain:
    """The oracle: looks through everything each time."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.answers: dict[str, VGPU] = {}

    def all(self) -> dict[str, tuple[str, str]]:
        """Name -> version and device."""
        newest = {v.metadata.name: v for v in self.watch}
        for name, answer in self.answers.items():
            if name not in newest or version(answer) > version(newest[name]):
                newest[name] = answer
        return {name: (v.metadata.resource_version, v.status.uuid) for name, v in newest.items()}


def version(one: VGPU) -> int:
    return int(one.metadata.resource_version)


def seen(found: WriteThroughCache) -> dict[str, tuple[str, str]]:
    return {v.metadata.name: (v.metadata.resource_version, v.status.uuid) for v in found}


KINDS = ("shown", "gone", "wrote", "forgot")
steps_of = st.lists(st.tuples(*map(st.sampled_from, (KINDS, NAMES, DEVICES))), max_size=30)


@given(steps_of)
def test_by_name_and_by_device_are_what_looking_through_all_finds(steps):
    """After any changes and answers, in any order, each way of asking agrees with a look through everything."""
    watch = Watch()
    known, plain = WriteThroughCache(watch), Plain(watch)
    for number, (kind, name, uuid) in enumerate(steps, 1):
        old = watch.get(name)
        if kind == "shown":
            watch[name] = vgpu(name, number, uuid)
            known.changed(Change("modified" if old else "added", watch[name], old))
        elif kind == "gone" and old is not None:
            del watch[name]
            known.changed(Change("deleted", old, old))
            plain.answers.pop(name, None)
        elif kind == "wrote":
            answer = vgpu(name, number, uuid)
            known.wrote(answer)
            plain.answers[name] = answer
        elif kind == "forgot":
            known.forget(name)
            plain.answers.pop(name, None)

        expected = plain.all()
        by_device = {u: {v.metadata.name for v in known.on(u)} for u in DEVICES[1:]}
        assert {u: {n for n, (_, on) in expected.items() if on == u} for u in DEVICES[1:]} == by_device
        by_name = {n: one for n in NAMES if (one := known.get(n)) is not None}
        assert expected == {n: (v.metadata.resource_version, v.status.uuid) for n, v in by_name.items()}
        assert expected == seen(known)


def test_an_answer_holds_until_the_watch_is_as_new():
    """A write's answer is what is known until the watch shows that version; an older one changes nothing."""
    watch = Watch({"a": vgpu("a", 1, "")})
    known = WriteThroughCache(watch)
    known.wrote(vgpu("a", 3, "GPU-0"))
    ahead = known.get("a")
    watch["a"] = vgpu("a", 2, "GPU-1")
    behind = known.get("a")
    watch["a"] = vgpu("a", 4, "GPU-1")
    caught_up = known.get("a")

    assert ["GPU-0", "GPU-0", "GPU-1"] == [one.status.uuid for one in (ahead, behind, caught_up) if one]
