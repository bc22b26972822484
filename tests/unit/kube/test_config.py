"""Where the API server is and who we are, from files as kubectl reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.kube.api import load_config, open_client
from aliquot.kube.errors import BadKubeConfig


def kubeconfig(
    path: Path, name: str, *, current: bool = True, user: dict[str, Any] | None = None, **cluster: Any
) -> str:
    """A kubeconfig with one context of that name; returns its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}", **cluster}}],
        "users": [{"name": name, "user": user or {"token": name}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document | ({"current-context": name} if current else {})))
    return str(path)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No cluster around, no home."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_file_named_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that is named wins over KUBECONFIG, which wins over the home directory."""
    kubeconfig(tmp_path / "home/.kube/config", "home")
    found = [load_config().cluster.server]
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "env", "env"))
    found.append(load_config().cluster.server)
    found.append(load_config(kubeconfig(tmp_path / "named", "named")).cluster.server)

    assert ["https://home", "https://env", "https://named"] == found


def test_several_files_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """KUBECONFIG may list files: contexts of all, the first current one, and of equal names the first."""
    one = kubeconfig(tmp_path / "one", "one", current=False)
    two = kubeconfig(tmp_path / "two", "two")
    again = kubeconfig(tmp_path / "again", "two", insecure=True)
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path}/absent:{two}:{again}")

    assert "https://two" == load_config().cluster.server
    assert ("https://one", "ns-one") == (
        load_config(context="one").cluster.server,
        load_config(context="one").namespace,
    )


def test_file_names_are_relative_to_their_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A certificate's path is found from the folder of the file that names it."""
    first = kubeconfig(tmp_path / "a/config", "one")
    second = kubeconfig(tmp_path / "b/config", "two", **{"certificate-authority": "ca.crt"})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")

    assert str(tmp_path / "b/ca.crt") == load_config(context="two").cluster.certificate_auth


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_credential_plugins_of_today_run(tmp_path: Path, version: str):
    """A plugin of the API v1 is run as one of v1beta1 would be, and told which version it was asked in."""
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" > "$1"\necho \'{"status": {"token": "secret"}}\'\n')
    plugin.chmod(0o755)
    seen = tmp_path / "seen"
    api = f"client.authentication.k8s.io/{version}"
    user = {"exec": {"apiVersion": api, "command": str(plugin), "args": [str(seen)]}}
    config = load_config(kubeconfig(tmp_path / "config", "one", user=user))
    flow = open_client(config).auth.sync_auth_flow(__import__("httpx2").Request("GET", "https://one"))  # type: ignore[union-attr]

    assert "Bearer secret" == next(flow).headers["Authorization"]
    assert api == json.loads(seen.read_text())["apiVersion"]


def test_a_context_without_a_user_needs_no_login(tmp_path: Path):
    """A server that asks nobody who they are can be used."""
    path = kubeconfig(tmp_path / "config", "one")
    document = yaml.safe_load(Path(path).read_text())
    del document["contexts"][0]["context"]["user"]
    Path(path).write_text(yaml.safe_dump(document))

    assert open_client(load_config(path)).auth is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "is not readable as YAML: line 1"),
        ("text", "is not a kubeconfig: it holds no mapping"),
        ("{}", "no current context"),
        ("{current-context: x}", "context 'x' not found"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: y}}]}",
            "the kubeconfig's context names 'y', which is not in the file",
        ),
        ("{current-context: x, contexts: [{name: x, context: {cluster: [1]}}]}", "is not in the form of one"),
    ],
)
def test_what_can_not_be_used_is_told_in_a_sentence(tmp_path: Path, text: str, sentence: str):
    """Each fault of a kubeconfig has its sentence."""
    (tmp_path / "config").write_text(text)

    with pytest.raises(BadKubeConfig) as caught:
        load_config(str(tmp_path / "config"))

    assert sentence in str(caught.value)


def test_without_any_file_the_way_out_is_told():
    """Nothing there: the sentence says how to name one."""
    with pytest.raises(BadKubeConfig, match="name one with --kubeconfig or in KUBECONFIG"):
        load_config()
