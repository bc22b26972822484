"""Who sees what where tokens are asked for: signing in, sessions, rights that come and go, and no token anywhere."""

import logging

import pytest
from starlette.testclient import TestClient

pytest.importorskip("lightkube", reason="the parts for a cluster are not installed: no rights to ask for")

from made_up_facts import MadeUpFacts

from aliquot.kube.api import ListQuestion, TokenRefused
from aliquot.kube.errors import Unreachable
from aliquot.status import NamespacedView
from aliquot.web import access
from aliquot.web.access import ANY_POD, Sessions, SignIn, TokenDoor
from aliquot.web.app import dashboard
from aliquot.web.feeds import Feeds

ADMIN, WEB, NODES, NOBODY = "token-admin", "token-web", "token-nodes", "token-nobody"
SECRETS = (ADMIN, WEB, NODES, NOBODY, "token-wrong")


class Cluster:
    """An API server that knows four tokens; it counts what it is asked."""

    def __init__(self) -> None:
        self.may = {
            ADMIN: {ANY_POD},
            WEB: {ListQuestion("pods", namespace="web")},
            NODES: {ListQuestion("nodes")},
            NOBODY: set[ListQuestion](),
        }
        self.asked: list[ListQuestion] = []
        self.away = False

    def may_list(self, token: str, what: ListQuestion) -> bool:
        if self.away:
            raise Unreachable("away", may_have_happened=False)
        self.asked.append(what)
        if token not in self.may:
            raise TokenRefused("the API server does not accept this token")
        return what in self.may[token]


class Scene:
    """The dashboard of a made-up cluster behind a door with tokens."""

    def __init__(self, facts: MadeUpFacts) -> None:
        self.now_s = 1000.0
        self.cluster = Cluster()
        self.sessions = Sessions(clock=lambda: self.now_s)
        self.door = TokenDoor(facts, self.cluster, self.sessions, clock=lambda: self.now_s)
        self.app = dashboard(
            self.door, hosts={"localhost", "gpus.example"}, signing_in=SignIn(self.door, self.sessions), feeds=Feeds()
        )

    def visitor(self, base: str = "http://localhost:8771") -> TestClient:
        """A browser of its own."""
        return TestClient(self.app, base_url=base)

    def get(self, path: str, token: str):
        """What a program with a token gets."""
        return self.visitor().get(path, headers={"authorization": f"Bearer {token}"})


@pytest.fixture
def scene(facts: MadeUpFacts) -> Scene:
    """Namespaces `web`, `research` and `batch` have work."""
    return Scene(facts)


@pytest.mark.parametrize("path", ["/", "/workloads", "/api/v1/gpus", "/live/", "/gpus/x", "/try?request=0.3"])
def test_nobody_sees_anything(scene: Scene, path: str):
    """Without a token every page asks for one, and nothing is told."""
    answer = scene.visitor().get(path)

    assert (401, "Bearer") == (answer.status_code, answer.headers["www-authenticate"])
    assert "web/" not in answer.text and "node-0" not in answer.text


def test_each_token_sees_what_its_owner_may_list(scene: Scene):
    """All names for who may list all pods, one namespace's for who may list its pods, room for who lists nodes."""
    names = {}
    for token in (ADMIN, WEB, NODES):
        told = scene.get("/api/v1/gpus", token).json()["items"]
        names[token] = {s["tenant"].partition("/")[0] for gpu in told for s in gpu["shares"] if "/" in s["tenant"]}
        assert 32 == len(told)

    assert {ADMIN: {"web", "research"}, WEB: {"web"}, NODES: set()} == names


def test_who_may_list_nothing_is_told_what_to_ask_for(scene: Scene):
    """An account without rights is refused with the rights that would help."""
    answer = scene.get("/", NOBODY)

    assert 403 == answer.status_code and "vgpus.aliquot.dev" in answer.text


def test_signing_in_and_out(scene: Scene):
    """A token in the form opens a session that pages and their live parts go by, until it is closed."""
    visitor = scene.visitor()
    answer = visitor.post("/signin", data={"token": WEB}, follow_redirects=False)
    cookie = answer.headers["set-cookie"]

    assert (303, "/") == (answer.status_code, answer.headers["location"])
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and WEB not in cookie
    assert "Sign out" in visitor.get("/").text
    word = visitor.cookies["aliquot"]
    visitor.post("/signout")
    assert 401 == visitor.get("/").status_code
    assert 401 == scene.visitor().get("/", headers={"cookie": f"aliquot={word}"}).status_code


@pytest.mark.parametrize(("token", "status"), [("token-wrong", 401), (NOBODY, 403), ("", 400), ("x" * 40_000, 400)])
def test_a_bad_token_opens_nothing(scene: Scene, token: str, status: int):
    """A token that is unknown, without rights, missing or endless leaves no session."""
    answer = scene.visitor().post("/signin", data={"token": token}, follow_redirects=False)

    assert (status, False) == (answer.status_code, "set-cookie" in answer.headers)


def test_without_https_only_this_machine_takes_a_token(scene: Scene):
    """At another name a token is taken over https only, and its cookie goes nowhere else; https may end before us."""
    plain = scene.visitor("http://gpus.example").post("/signin", data={"token": WEB}, follow_redirects=False)
    behind = scene.visitor("http://gpus.example").post(
        "/signin", data={"token": WEB}, headers={"x-forwarded-proto": "https"}, follow_redirects=False
    )

    assert 403 == plain.status_code and "https" in plain.text
    assert 303 == behind.status_code
    assert behind.headers["set-cookie"].startswith("__Host-aliquot=") and "Secure" in behind.headers["set-cookie"]


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
@pytest.mark.parametrize("path", ["/signin", "/signout"])
def test_other_sites_sign_nobody_in_or_out(scene: Scene, path: str, headers: dict[str, str]):
    """A form on a foreign page does nothing here."""
    visitor = scene.visitor()
    visitor.post("/signin", data={"token": WEB})
    answer = visitor.post(path, data={"token": ADMIN}, headers=headers, follow_redirects=False)

    assert (403, False) == (answer.status_code, "set-cookie" in answer.headers)
    assert 200 == visitor.get("/").status_code


def test_our_own_form_is_known_by_the_browsers_word(scene: Scene):
    """Pages that send no referrer have forms of origin `null`; the browser says that they are this server's."""
    own = {"origin": "null", "sec-fetch-site": "same-origin"}
    answer = scene.visitor().post("/signin", data={"token": WEB}, headers=own, follow_redirects=False)

    assert 303 == answer.status_code


def test_nothing_else_takes_post(scene: Scene):
    """Signing in and out are the only requests that are not read."""
    assert {405} == {scene.visitor().post(path).status_code for path in ("/", "/api/v1/gpus", "/signin/x", "/live/")}


def test_a_refused_method_is_answered_with_those_allowed(scene: Scene):
    """The Allow header names POST where a form is sent, and only there."""
    refused = {path: scene.visitor().put(path).headers["allow"] for path in ("/", "/signin")}

    assert {"/": "GET, HEAD", "/signin": "GET, HEAD, POST"} == refused


def test_a_right_that_is_taken_away_is_gone_from_the_pages(scene: Scene):
    """What was found out is believed for half a minute, then asked again."""
    assert 200 == scene.get("/", WEB).status_code
    scene.cluster.may[WEB] = set()
    assert 200 == scene.get("/", WEB).status_code
    scene.now_s += access.BELIEVED_S + 1

    assert 403 == scene.get("/", WEB).status_code


def test_a_token_that_expires_is_asked_for_again(scene: Scene):
    """A session whose token is no longer known shows the form again, with the reason."""
    visitor = scene.visitor()
    visitor.post("/signin", data={"token": WEB})
    del scene.cluster.may[WEB]
    scene.now_s += access.BELIEVED_S + 1
    answer = visitor.get("/")

    assert 401 == answer.status_code and "does not accept this token" in answer.text


def test_an_api_server_that_is_away_opens_nothing(scene: Scene):
    """What cannot be asked is not believed longer than else."""
    scene.get("/", WEB)
    scene.cluster.away = True
    scene.now_s += access.BELIEVED_S + 1

    assert 503 == scene.get("/", WEB).status_code
    assert 503 == scene.get("/api/v1/gpus", ADMIN).status_code


@pytest.mark.parametrize(("token", "questions"), [(WEB, 3 + 3), ("token-wrong", 1)])
def test_rights_are_asked_once_for_many_pages(scene: Scene, token: str, questions: int):
    """The pages of a viewer, or of somebody with a wrong token, cost some questions each half minute, not some each."""
    for _ in range(20):
        scene.get("/", token)

    assert 1 <= len(scene.cluster.asked) <= questions


def test_equal_rights_are_one_view(scene: Scene):
    """Viewers of the same namespaces share their view, and with it their live pages."""
    scene.cluster.may["other"] = {ListQuestion("pods", namespace="web")}
    first, second = scene.door.view(WEB), scene.door.view("other")

    assert isinstance(first, NamespacedView) and first is second
    assert scene.door.view(ADMIN) is not first


def test_a_new_namespace_is_asked_for(scene: Scene, facts: MadeUpFacts):
    """Work in a namespace that nobody had work in is shown to who may see it, at once."""
    from aliquot.status import Workload

    scene.cluster.may[WEB].add(ListQuestion("pods", namespace="new"))
    scene.get("/", WEB)
    facts.add(Workload("new/pod", "Pod", "Pending", 100, 100, [], 1.0))
    scene.now_s += 1

    assert "new/pod" in scene.get("/workloads", WEB).text
    assert 1 == scene.cluster.asked.count(ListQuestion("nodes"))


def test_the_header_comes_before_the_cookie(scene: Scene):
    """A program's token counts, whatever session it also has; a word that is none of ours is nothing."""
    visitor = scene.visitor()
    visitor.post("/signin", data={"token": WEB})

    assert 403 == visitor.get("/", headers={"authorization": f"bearer {NOBODY}"}).status_code
    assert 401 == scene.visitor().get("/", headers={"cookie": "aliquot=guess; __Host-aliquot=guess"}).status_code
    assert 401 == scene.visitor().get("/", headers={"authorization": "Bearer "}).status_code


def test_no_token_is_written_anywhere(scene: Scene, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture):
    """Neither a page, an address, a header nor a log has a token, whatever goes right or wrong with it."""
    caplog.set_level(logging.DEBUG)
    visitor = scene.visitor()
    told = []
    for token in SECRETS:
        answer = visitor.post("/signin", data={"token": token}, follow_redirects=False)
        told += [answer.text, str(answer.headers), str(answer.url)]
        for path in ("/", "/workloads", "/api/v1/gpus", "/signin"):
            answer = scene.get(path, token)
            told += [answer.text, str(answer.headers)]
    scene.cluster.away, scene.now_s = True, scene.now_s + 100
    told += [scene.get("/", token).text for token in SECRETS]
    said = capsys.readouterr()
    everything = "".join([*told, caplog.text, said.out, said.err])

    assert [] == [token for token in SECRETS if token in everything]


def test_a_door_that_breaks_shows_no_token(facts: MadeUpFacts, capsys: pytest.CaptureFixture):
    """A defect while rights are asked for is logged without the token."""

    class Broken:
        def may_list(self, token: str, what: ListQuestion) -> bool:
            raise RuntimeError("broken")

    sessions = Sessions()
    door = TokenDoor(facts, Broken(), sessions)
    app = dashboard(door, signing_in=SignIn(door, sessions))
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    answer = client.get("/", headers={"authorization": f"Bearer {ADMIN}"})
    said = capsys.readouterr()

    assert 500 == answer.status_code
    assert ADMIN not in answer.text + said.out + said.err


async def test_an_open_page_ends_with_its_right(facts: MadeUpFacts):
    """A live page whose viewer loses the right to it is ended soon, so that its browser asks again and is refused."""
    import asyncio

    sent: list[dict] = []

    feeds = Feeds(tick_s=0.01, ask_again_s=0.05)
    allowed = [True]

    async def receive():
        await asyncio.sleep(60)

    async def send(message) -> None:
        sent.append(message)
        if len(sent) > 2:
            allowed[0] = False

    async def still() -> bool:
        return allowed[0]

    def draw():
        from aliquot.web.render import block

        facts.pass_time()
        return [block("none", "blocks/none.html", text=str(facts.revision))]

    async with asyncio.timeout(10):
        await feeds.serve("page", draw, lambda: facts.revision, receive, send, still=still)

    assert len(sent) > 2 and not sent[-1]["more_body"]
