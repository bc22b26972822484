"""Who sees what on the dashboard of a machine that several accounts use: links, sessions, logs and ending."""

from typing import NamedTuple

import pytest
from made_up_facts import MadeUpFacts
from starlette.testclient import TestClient

from aliquot.model.errors import AliquotError
from aliquot.status import Event, Standing
from aliquot.status.workloads import placed
from aliquot.web.accounts import LINK_S, MAX_SESSIONS, SESSION_S, AccountDoor
from aliquot.web.app import dashboard

NOTE = "12:00:00 loaded secret-model"


class Account(NamedTuple):
    """An account as an engine knows it."""

    uid: int
    name: str


ANN, BOB = Account(1001, "ann"), Account(1002, "bob")


class Facts(MadeUpFacts):
    """A machine on which ann and bob have a SharePod each, with an event."""

    def workloads(self):
        import msgspec

        pods = [placed(f"{name}/train", [], Standing("SharePod")) for name in ("ann", "bob")]
        return [msgspec.structs.replace(pod, events=[NOTE]) for pod in pods]

    def events(self, since: int):
        return [Event(n, 0.0, "sharepod", f"{name}/train", f"of {name}") for n, name in enumerate(("ann", "bob"))]


class Scene:
    """The dashboard, the engine behind it, and a browser of the account `uid`."""

    def __init__(self) -> None:
        self.now_s, self.uid = 0.0, ANN.uid
        self.ended: list[str] = []
        self.door = AccountDoor(Facts(nodes=1), self, uid_of=lambda request: self.uid, clock=lambda: self.now_s)

    def owns(self, account: Account, name: str) -> bool:
        return name.startswith(f"{account.name}/")

    def logs(self, account: Account, name: str, container: str) -> str:
        if name != "ann/train":
            raise AliquotError(f'there is no sharepod "{name}"')
        return f"<b>epoch 1</b> {container}\n"

    def end(self, account: Account, name: str) -> str:
        self.ended.append(name)
        return "done"

    def browser(self, account: Account | None = None) -> TestClient:
        """A browser, in which an account has signed in."""
        opened = TestClient(dashboard(self.door, signing_in=self.door), base_url="http://localhost")
        if account is not None:
            self.uid = account.uid
            assert 200 == opened.get(f"/{self.door.link(account)}").status_code
        return opened


@pytest.fixture
def scene() -> Scene:
    return Scene()


def sees(browser: TestClient) -> tuple[set[str], int]:
    """Whose events a browser sees, and how many workloads."""
    events = browser.get("/api/v1/events").json()["items"]
    return {event["subject"] for event in events}, browser.get("/api/v1/workloads").json()["total"]


def test_who_has_not_signed_in_sees_names_and_no_events(scene: Scene):
    """Without a session a page has every name, no event, and a sentence that says how to get more."""
    browser = scene.browser()
    page = browser.get("/workloads/ann/train").text

    assert (set(), 2) == sees(browser)
    assert (True, False, False) == ("aliquot dashboard" in page, NOTE in page, "/end/" in page)


def test_an_account_sees_the_events_of_its_own(scene: Scene):
    """With a session the pages have what is the account's own in full, and of others names and shares."""
    browser = scene.browser(ANN)
    own, other = browser.get("/workloads/ann/train").text, browser.get("/workloads/bob/train").text

    assert ({"ann/train"}, 2) == sees(browser)
    assert (True, True) == (NOTE in own, 'action="/end/ann/train"' in own)
    assert (False, False) == (NOTE in other, "/end/" in other)


def test_the_cookie_is_not_for_scripts_and_other_sites(scene: Scene):
    """The session's cookie is HttpOnly, SameSite=Strict, and ends by itself."""
    answer = TestClient(dashboard(scene.door, signing_in=scene.door), base_url="http://localhost").get(
        f"/{scene.door.link(ANN)}"
    )

    assert {"httponly", "samesite=strict", f"max-age={SESSION_S}"} <= set(
        answer.headers["set-cookie"].lower().split("; ")
    )


def test_a_link_works_once_for_a_minute_and_for_its_account(scene: Scene):
    """A link that was used, is late, void, another account's or made up signs nobody in."""
    used, late, void, another = (scene.door.link(ANN) for _ in range(4))
    browser = scene.browser()
    scene.uid = BOB.uid
    stolen = browser.get(f"/{another}").status_code
    scene.uid = ANN.uid
    first = browser.get(f"/{another}").status_code
    refused = [browser.get(f"/{link}").status_code for link in (used, void, another, "signin?token=x", "signin")]
    late = scene.door.link(ANN)
    scene.now_s = LINK_S

    assert (403, 200, {403}) == (stolen, first, set(refused))
    assert (403, True) == ((answer := browser.get(f"/{late}")).status_code, "aliquot dashboard" in answer.text)


def test_logs_and_ends_are_for_their_owner(scene: Scene):
    """An account reads the logs of its own and ends them; another's are refused in a sentence, as is nobody."""
    nobody = scene.browser()
    unknown = [nobody.get("/logs/ann/train").status_code, nobody.post("/end/ann/train").status_code]
    browser = scene.browser(ANN)
    own = browser.get("/logs/ann/train?container=main")
    others = [browser.get("/logs/bob/train"), browser.post("/end/bob/train")]
    gone = browser.get("/logs/ann/gone")
    before = list(scene.ended)
    end = browser.post("/end/ann/train", follow_redirects=False)

    assert ([401, 401], 404) == (unknown, gone.status_code)
    assert ("<b>epoch 1</b> main\n", "text/plain; charset=utf-8") == (own.text, own.headers["content-type"])
    assert [(403, "bob/train is not yours; its owner and root can do that.\n")] * 2 == [
        (answer.status_code, answer.text) for answer in others
    ]
    assert ([], ["ann/train"], 303) == (before, scene.ended, end.status_code)


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://localhost:99"}]
)
def test_another_site_ends_nothing(scene: Scene, headers: dict[str, str]):
    """A form of another site, or of another port of this machine, ends nothing and signs nobody out."""
    browser = scene.browser(ANN)

    assert {403} == {browser.post(path, headers=headers).status_code for path in ("/end/ann/train", "/signout")}
    assert ([], {"ann/train"}) == (scene.ended, sees(browser)[0])


def test_a_cookie_counts_on_connections_of_its_account(scene: Scene):
    """A session's cookie in the hands of another account is nobody's."""
    browser = scene.browser(ANN)
    scene.uid = BOB.uid

    assert (set(), 401, 401) == (
        sees(browser)[0], browser.get("/logs/ann/train").status_code, browser.post("/end/ann/train").status_code
    )  # fmt: skip


def test_sessions_end(scene: Scene):
    """A session ends when its account signs out, has signed in too often since, or after some hours."""
    out = scene.browser(ANN)
    cookie = dict(out.cookies)
    out.post("/signout")
    out.cookies.update(cookie)
    first, bobs = scene.browser(ANN), scene.browser(BOB)
    later = [scene.browser(ANN) for _ in range(MAX_SESSIONS)]
    assert [set(), set(), {"ann/train"}, {"ann/train"}] == [sees(each)[0] for each in (out, first, later[0], later[-1])]
    scene.uid = BOB.uid
    assert {"bob/train"} == sees(bobs)[0]
    scene.now_s = SESSION_S
    assert set() == sees(bobs)[0]
