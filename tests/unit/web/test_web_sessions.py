"""Sessions: sealed cookies that every replica with the key opens, and how they end."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

pytest.importorskip("lightkube", reason="the parts for a cluster are not installed: nobody signs in")

from cryptography.fernet import Fernet
from made_up_facts import MadeUpFacts

from aliquot.kube.errors import AlreadyExists, Forbidden
from aliquot.kube.objects import Meta, Resource, Secret
from aliquot.web.access import FIELD, LIFE_S, SECRET, Sessions, SignIn, TokenDoor, keep_shared, names, shared_key
from aliquot.web.app import dashboard


class Everything:
    """An API server at which every token may list everything."""

    def may_list(self, token: str, what: object) -> bool:
        return True


def replica(facts: MadeUpFacts, sessions: Sessions) -> Any:
    """One dashboard of several."""
    door = TokenDoor(facts, Everything(), sessions)
    return dashboard(door, hosts={"localhost", "gpus.example"}, signing_in=SignIn(door, sessions))


def carried(pieces: list[str], cookie: str = "aliquot", host: str = "localhost") -> dict[str, str]:
    """The headers of a browser that has these cookies."""
    return {"host": host, "cookie": "; ".join(f"{n}={p}" for n, p in zip(names(cookie), pieces, strict=False))}


@pytest.mark.parametrize("token", ["short", "x" * 16_000])
def test_who_signed_in_at_one_replica_is_known_at_another(facts: MadeUpFacts, token: str):
    """With one key for all, a session holds wherever the next request lands, however long its token is."""
    key = Fernet.generate_key()
    one, other = (TestClient(replica(facts, Sessions(key)), base_url="http://localhost") for _ in range(2))
    one.post("/signin", data={"token": token})
    other.cookies.update(one.cookies)

    assert "Sign out" in other.get("/").text
    assert all(len(name + value) < 4096 for name, value in one.cookies.items())
    assert token not in str(one.cookies)


def test_without_a_common_key_a_session_holds_at_one_replica():
    """What another key sealed is nobody's session."""
    assert "" == Sessions().token_of(carried(Sessions().open("t")))


def test_a_session_outlives_the_first_seconds_of_its_replica():
    """Who signed in before the common key was known stays signed in when it is."""
    sessions = Sessions()
    early = sessions.open("t")
    key = Fernet.generate_key()
    sessions.share(key)

    assert "t" == sessions.token_of(carried(early))
    assert "t" == Sessions(key).token_of(carried(sessions.open("t")))


def test_a_session_ends_after_eight_hours():
    """However often it is used, and whatever clock the browser has."""
    now_s = [1_000_000.0]
    sessions = Sessions(clock=lambda: now_s[0])
    pieces = sessions.open("t")
    now_s[0] += LIFE_S - 1
    assert "t" == sessions.token_of(carried(pieces))
    now_s[0] += 2
    assert "" == sessions.token_of(carried(pieces))


def test_a_copy_of_a_closed_session_is_closed():
    """Signing out refuses the cookie that was signed out, and no other of the same token."""
    sessions = Sessions()
    one, other = sessions.open("t"), sessions.open("t")
    sessions.close(carried(one))

    assert ("", "t") == (sessions.token_of(carried(one)), sessions.token_of(carried(other)))


def test_strangers_do_not_crowd_out_what_was_closed(monkeypatch: pytest.MonkeyPatch):
    """Only sessions are remembered as closed, not whatever is sent to /signout."""
    monkeypatch.setattr("aliquot.web.access.MAX_ENDED", 2)
    sessions = Sessions()
    pieces = sessions.open("t")
    sessions.close(carried(pieces))
    for number in range(5):
        sessions.close(carried([f"1.guess{number}"]))

    assert "" == sessions.token_of(carried(pieces))


def test_nobody_is_signed_in_by_a_cookie_that_others_can_give():
    """Away from the loopback only the name counts that a browser takes from this very host: a neighbour's site could
    set the other one, and have people look at what its account sees."""
    sessions = Sessions()
    pieces = sessions.open("t")

    assert "" == sessions.token_of(carried(pieces, "aliquot", "gpus.example"))
    assert "t" == sessions.token_of(carried(pieces, "__Host-aliquot", "gpus.example"))


@pytest.mark.parametrize("word", ["", ".", "1.", "9.x", "1.x", "².x", "1.\udcff", "8." + "x" * 5000])
def test_a_guess_is_no_session(word: str):
    """Whatever a cookie says, it is no error."""
    assert "" == Sessions().token_of(carried([word]))


async def test_a_form_that_never_ends_is_given_up(facts: MadeUpFacts, monkeypatch: pytest.MonkeyPatch):
    """Who sends a token byte by byte is answered before the last of them."""
    monkeypatch.setattr("aliquot.web.access.PATIENCE_S", 0.05)

    async def drops() -> AsyncIterator[bytes]:
        yield b"token="
        await asyncio.sleep(5)

    transport = httpx2.ASGITransport(replica(facts, Sessions()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert 408 == (await client.post("/signin", content=drops())).status_code


class Secrets:
    """An API server with at most one Secret; `late` is made by another replica just before ours."""

    def __init__(self, late: Secret | None = None, *, forbidden: bool = False) -> None:
        self.held: Secret | None = None
        self.late = late
        self.forbidden = forbidden

    async def find(self, resource: Resource[Secret], name: str, *, namespace: str) -> Secret | None:
        assert (SECRET, "home") == (name, namespace)
        if self.forbidden:
            raise Forbidden("secrets is forbidden", 403)
        return self.held

    async def get(self, resource: Resource[Secret], name: str, *, namespace: str) -> Secret | None:
        return await self.find(resource, name, namespace=namespace)

    async def create(self, resource: Resource[Secret], body: dict[str, Any], *, namespace: str) -> Secret:
        if self.late is not None:
            self.held = self.late
            raise AlreadyExists("it is there", 409)
        self.held = Secret(Meta(name=SECRET), body["data"])
        return self.held


def holding(key: bytes) -> Secret:
    return Secret(Meta(name=SECRET), {FIELD: base64.b64encode(key).decode()})


def test_the_first_replica_makes_the_key_and_the_others_take_it():
    """One Secret holds it; who comes second in the same moment takes the first one's."""
    first, api, key = Secrets(), Secrets(holding(b"k")), asyncio.run
    made = key(shared_key(first, "home"))  # type: ignore[arg-type]

    assert made == asyncio.run(shared_key(first, "home"))  # type: ignore[arg-type]
    assert Fernet(made)
    assert b"k" == asyncio.run(shared_key(api, "home"))  # type: ignore[arg-type]


def after(api: Secrets, sessions: Sessions, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions are shared for a while, then something changes, and a while later this returns."""
    monkeypatch.setattr("aliquot.web.access.LOOK_S", 0.005)
    monkeypatch.setattr("aliquot.web.access.SOON_S", 0.005)

    async def main() -> None:
        keeping = asyncio.create_task(keep_shared(api, "home", sessions, asyncio.Event()))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        change()
        await asyncio.sleep(0.1)
        keeping.cancel()

    asyncio.run(main())


def test_deleting_the_key_signs_everybody_out(monkeypatch: pytest.MonkeyPatch):
    """A new one is made, and what the old one sealed is nothing any more."""
    api, sessions, pieces = Secrets(), Sessions(), []

    def change() -> None:
        pieces.extend(sessions.open("t"))
        assert "t" == sessions.token_of(carried(pieces))
        api.held = None

    after(api, sessions, change, monkeypatch)

    assert "" == sessions.token_of(carried(pieces))
    assert api.held is not None


@pytest.mark.parametrize("api", [Secrets(forbidden=True), Secrets(holding(b"no key"))])
def test_without_a_common_key_it_is_said_once(
    api: Secrets, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Where the key cannot be had, people sign in at each replica, and the log says why, not over and over."""
    sessions = Sessions()
    after(api, sessions, lambda: None, monkeypatch)

    assert "t" == sessions.token_of(carried(sessions.open("t")))
    assert 1 == capsys.readouterr().err.count("at this replica only")
