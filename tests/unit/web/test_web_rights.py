"""What a viewer sees who has rights to some namespaces only."""

import re
from itertools import pairwise

import msgspec
import pytest
from kit.browsing import browser
from made_up_facts import MadeUpFacts

from aliquot.model.requests import GpuRequest
from aliquot.status import Explanation, NamespacedView, Reason, Share
from aliquot.status.view import OTHERS
from aliquot.web.app import PAGES
from aliquot.web.rest import OPERATIONS


@pytest.fixture
def seen(facts: MadeUpFacts) -> NamespacedView:
    """The made-up cluster for somebody of the namespace `web`, in which parts of GPUs are."""
    return NamespacedView(facts, frozenset({"web"}))


def test_room_is_everybodys(seen: NamespacedView, facts: MadeUpFacts):
    """What is free and what is used is the same for all viewers."""

    def numbers(gpus):
        return [(gpu.uuid, gpu.free_milli, gpu.busy_milli, [s.request_milli for s in gpu.shares]) for gpu in gpus]

    assert numbers(facts.gpus()) == numbers(seen.gpus())
    assert facts.nodes() == seen.nodes()


def test_own_names_are_told(seen: NamespacedView, facts: MadeUpFacts):
    """Tenants of the viewer's namespaces keep their names, the others are counted."""
    for before, after in zip(facts.gpus(), seen.gpus(), strict=True):
        for share, told in zip(before.shares, after.shares, strict=True):
            assert share.tenant == told.tenant if share.tenant.startswith("web/") else told.tenant.startswith(OTHERS)


def test_a_foreign_workload_is_not_there(seen: NamespacedView, facts: MadeUpFacts):
    """A workload of another namespace is answered like one that does not exist."""
    other = next(w.name for w in facts.workloads() if w.namespace == "research")
    mine = next(w.name for w in facts.workloads() if w.namespace == "web")

    assert seen.explain(other) is None and seen.explain(mine) is not None
    assert {"web"} == {workload.namespace for workload in seen.workloads()}


def test_a_name_that_only_begins_like_mine_is_not_mine(facts: MadeUpFacts):
    """Rights to `we` are none to `web`, and a run without a namespace is nobody's."""
    assert [] == list(NamespacedView(facts, frozenset({"we", ""})).workloads())


def test_a_trial_keeps_the_viewers_own_part(seen: NamespacedView):
    """A dry run shows the viewer's request among unnamed others."""
    trial = seen.try_request(GpuRequest(100))

    assert trial.fits and msgspec.json.encode(trial)


# Of a tenant of another namespace; no figure of the made-up cluster is one of these.
SECRET = {"wait_ms": 7177.5, "debt_ms": 7277.5, "quota_ms": 7377.5, "processes": 7477, "windows": 7577}
HOLDER = "research/secret-holder"
TELLING = [
    HOLDER, "secret-holder", "7177.5", "7277.5", "7377.5", "7178 ms", "7278 ms", "7378 ms", '"processes":7477',
    '"windows":7577', "7577 windows", '"kept_percent":71.77',
]  # fmt: skip


def told_by(text: str) -> list[str]:
    """What it has of the secrets, which the last digits of a longer number, such as the time, are not."""
    return [each for each in TELLING if re.search(rf"(?<!\d){re.escape(each)}", text)]


@pytest.fixture
def shared(facts: MadeUpFacts) -> str:
    """A GPU with a tenant of each namespace, of which the foreign one waits, owes and holds the token; its UUID."""
    uuid = next(gpu.uuid for gpu in facts.gpus() if any(s.tenant.startswith("web/") for s in gpu.shares))
    facts.put(uuid, Share(HOLDER, 300, 600, 250, 2048, 1024, HOLDER, waiting=True, kept_percent=71.77, **SECRET))
    facts.hand_to(uuid, HOLDER)
    facts.pass_time(points=12)
    facts.remember(minutes=20)
    return uuid


def every_path(facts: MadeUpFacts, uuid: str) -> list[str]:
    """Each path of the API and each page, about that GPU, its node and a workload of the viewer's."""
    mine = next(workload.name for workload in facts.workloads() if workload.namespace == "web")
    node = next(gpu.node for gpu in facts.gpus() if gpu.uuid == uuid)
    paths = [*(f"/api/v1{operation.path}" for operation in OPERATIONS), "/api/v1/hours.csv", *PAGES]
    paths = [path.replace("/nodes/{name}", f"/nodes/{node}").replace("{uuid}", uuid) for path in paths]
    paths = [path.replace("{name:path}", mine).replace("{name}", mine) for path in paths]
    queries = {"/timeline": [f"?gpu={uuid}&range={word}" for word in ("1m", "1h", "24h")], "/try": ["?request=0.1"]}
    return [path + query for path in paths for query in queries.get(path.removeprefix("/api/v1"), [""])]


def test_nothing_but_size_and_use_of_others_is_shown(seen: NamespacedView, facts: MadeUpFacts, shared: str):
    """No path of the API and no page has the name, waits, grants, debt, processes or promise of a foreign tenant."""
    visitor = browser(seen)
    answers = {path: visitor.get(path) for path in every_path(facts, shared)}
    names = {share.tenant for gpu in facts.gpus() for share in gpu.shares if not share.tenant.startswith("web/")}

    assert {} == {p: a.status_code for p, a in answers.items() if a.status_code != 200 and "topology" not in p}
    assert {} == {p: found for p, a in answers.items() if (found := told_by(a.text))}
    assert len(names) > 1 and [] == [name for name in names for answer in answers.values() if name in answer.text]


def test_the_made_up_secret_is_there_for_others(facts: MadeUpFacts, shared: str):
    """Whoever has the rights sees all of it, so that the test above looks where it is."""
    text = browser(facts).get(f"/gpus/{shared}").text

    assert all(each in text for each in (HOLDER, "7178 ms", "7278 ms", "7378 ms", "7577 windows"))


def test_live_pages_are_of_the_viewers_view(seen: NamespacedView, facts: MadeUpFacts, shared: str):
    """What a live page sends is drawn from the same view as the page: nothing of a foreign tenant is in it."""
    for path, (draw, _, word) in PAGES.items():
        mine = next(workload.name for workload in facts.workloads() if workload.namespace == "web")
        query = {"uuid": shared, "gpu": shared, "range": "1m"} | ({"name": mine} if word == "name" else {})
        html = "".join(each.html for each in draw(seen, query).blocks)

        assert (path, []) == (path, told_by(html))


def test_a_hidden_tenant_is_told_from_one_that_never_waits(seen: NamespacedView, facts: MadeUpFacts, shared: str):
    """A reader of the API knows by `hidden` that a foreign tenant's waits are not shown, and a page has a dash."""
    gpu = next(gpu for gpu in seen.gpus() if gpu.uuid == shared)
    foreign, own = gpu.shares[-1], gpu.shares[0]

    assert (True, False, "") == (foreign.hidden, own.hidden, gpu.holder)
    assert (300, 600, 2048) == (foreign.request_milli, foreign.limit_milli, foreign.memory_mib)


def test_turns_of_others_show_no_hand_over(seen: NamespacedView, shared: str):
    """Turns of foreign tenants that follow each other are one, so that no grant of theirs can be read from them."""
    turns = seen.turns(shared)

    assert turns is not None
    foreign = [n for n, turn in enumerate(turns.turns) if not turn.tenant.startswith("web/")]
    assert foreign and all(b - a > 1 for a, b in pairwise(foreign))


class NamingFacts(MadeUpFacts):
    """Explanations name another tenant, as those of a request with a promise of waking do."""

    def explain(self, name: str) -> Explanation:
        """See `StatusSource`."""
        why = [f"whether it wakes in time is not certain yet: kernels of {HOLDER} were not measured"]
        return Explanation(name, "It waits.", why, [Reason("GPU 0", f'has "{HOLDER}" with kernels of 5 ms')])


def test_an_explanation_names_no_other_tenant():
    """A reason that is told with the name of a foreign tenant is told without it."""
    facts = NamingFacts(nodes=1, gpus=4)
    facts.put(facts.gpus()[0].uuid, Share(HOLDER, 100, 100, 0, 64, 0, HOLDER))
    found = NamespacedView(facts, frozenset({"web"})).explain("web/mine")

    assert found is not None
    assert f'has "{OTHERS}" with kernels of 5 ms' == found.reasons[0].text
    assert HOLDER not in found.why[0] and OTHERS in found.why[0]
