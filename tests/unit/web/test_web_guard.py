"""Who is answered, and what browsers are told."""

import pytest
from starlette.testclient import TestClient

from aliquot.http.listening import PortTaken, listening
from aliquot.web.app import AccessDenied, dashboard
from aliquot.web.guard import host_name

PAGES = ["/", "/gpus", "/workloads", "/topology", "/pool", "/try", "/api/v1/gpus", "/nowhere", "/static/aliquot.css"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "", "[::2]"])
def test_a_foreign_name_is_refused(visitor: TestClient, host: str):
    """A request that names another host (DNS rebinding) gets nothing."""
    assert 421 == visitor.get("/api/v1/gpus", headers={"host": host}).status_code


@pytest.mark.parametrize(
    ("came_to", "host", "status"),
    [
        ("10.0.0.5", "10.0.0.5:8771", 200),
        ("fd00::5", "[fd00::5]:8771", 200),
        ("::ffff:10.0.0.5", "10.0.0.5", 200),
        ("10.0.0.5", "10.0.0.6", 421),
        ("10.0.0.5", "evil.example", 421),
        ("evil.example", "evil.example", 421),
    ],
)
def test_the_address_that_was_come_to_is_a_name_too(facts, came_to: str, host: str, status: int):
    """No name can be re-bound to an address that stands in the Host header itself."""
    app = dashboard(lambda headers: facts)

    async def there(scope, receive, send):
        await app({**scope, "server": (came_to, 8771)}, receive, send)

    assert status == TestClient(there).get("/", headers={"host": host}).status_code


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_foreign_pages_may_only_link_here(visitor: TestClient, site: str, mode: str, status: int):
    """A page of another site cannot make a browser try requests or open live pages in the background."""
    for path in ("/try?request=0.5", "/api/v1/try?request=0.5"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
        assert status == visitor.get(path, headers=headers).status_code


HOSTS = {"a:80": "a", "a": "a", "[::1]:80": "[::1]", "[::1]": "[::1]", "A": "a", "a:b": "a:b"}


@pytest.mark.parametrize("header", HOSTS)
def test_a_host_is_read_without_its_port(header: str):
    """The port is not a part of the name; brackets are."""
    assert HOSTS[header] == host_name(header)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/try", "/api/v1/workloads"])
def test_nothing_can_be_changed(visitor: TestClient, method: str, path: str):
    """Every method but GET and HEAD is refused everywhere."""
    assert 405 == visitor.request(method, path).status_code


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_carries_the_policy(visitor: TestClient, path: str):
    """Nothing inline and nothing foreign may be loaded, whatever is asked for."""
    policy = visitor.get(path).headers["content-security-policy"]

    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http:" not in policy and "*" not in policy


@pytest.mark.parametrize("path", [page for page in PAGES if not page.startswith(("/static", "/api"))])
def test_pages_hold_to_the_policy(visitor: TestClient, path: str):
    """No page has a script, style or handler of its own, or names another host."""
    text = visitor.get(path).text.lower()

    assert "<script>" not in text and "<style" not in text and " style=" not in text and " onclick" not in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_facts_are_not_stored(visitor: TestClient):
    """Pages and facts are kept by no cache; files are, for their address has their content in it."""
    assert "no-store" == visitor.get("/").headers["cache-control"]
    assert "no-store" == visitor.get("/api/v1/gpus").headers["cache-control"]
    assert "immutable" in visitor.get("/static/aliquot.css?v=1").headers["cache-control"]


def test_a_door_can_refuse(facts):
    """A viewer whom the door does not know sees an explanation instead of facts, as page and as JSON."""

    def door(request):
        if request.headers.get("authorization") != "Bearer secret-token":
            raise AccessDenied("Sign in to see GPUs.", 401)
        return facts

    client = TestClient(dashboard(door), base_url="http://localhost")

    assert [401, 401, 401] == [client.get(path).status_code for path in ("/", "/api/v1/gpus", "/live/")]
    assert 200 == client.get("/", headers={"authorization": "Bearer secret-token"}).status_code


def test_a_defect_is_told_without_secrets(facts, capsys):
    """A page that fails says so; neither the page nor the log has the query or a header."""

    def door(headers):
        raise RuntimeError("broken")

    client = TestClient(dashboard(door), base_url="http://localhost", raise_server_exceptions=False)
    answer = client.get("/?q=private-word", headers={"authorization": "Bearer secret-token"})
    said = capsys.readouterr()

    assert 500 == answer.status_code
    assert "secret-token" not in answer.text + said.out + said.err
    assert "private-word" not in answer.text + said.out + said.err


def test_a_taken_port_is_passed_over_where_any_will_do():
    """Of several ports that may be tried the first free one is taken; where one was asked for, a taken one is told."""
    with listening("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with listening("127.0.0.1", port, 20) as other:
            assert port < other.getsockname()[1] < port + 20
        with pytest.raises(PortTaken, match=f"--port {port}: address already in use"):
            listening("127.0.0.1", port)
