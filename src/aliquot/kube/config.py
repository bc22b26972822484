"""The API server's address and our credentials: kubeconfig files, service accounts, credential plugins.

lightkube does the work (TLS, tokens re-read when they rotate, plugins, proxies) and gives a configured HTTP client.
What it does not do is done here: several files in KUBECONFIG, plugins of the API `client.authentication.k8s.io/v1`,
contexts without a user, and errors that people can read.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue, User, UserExec
from lightkube.core.exceptions import ConfigError

from aliquot.kube.errors import BadKubeConfig
from aliquot.kube.manifest import BadYaml, read_yaml_file

DEFAULT_FILE: Final = "~/.kube/config"
TIMEOUT_S: Final = 10.0
_EXEC_V1: Final = "client.authentication.k8s.io/v1"
_EXEC_V1BETA1: Final = "client.authentication.k8s.io/v1beta1"
_FILES_IN: Final = (
    ("clusters", "cluster", ("certificate-authority",)),
    ("users", "user", ("client-certificate", "client-key", "tokenFile")),
)


def load_config(kubeconfig: str = "", context: str = "") -> SingleConfig:
    """The connection to use: the file named, else the pod's service account, else KUBECONFIG, else ~/.kube/config.

    Raises:
        BadKubeConfig: none of these is there, one cannot be read, or the context is not in it.
    """
    try:
        config: KubeConfig | None = None
        if not kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST"):
            with contextlib.suppress(ConfigError):  # not in a pod, or in one without a service account
                config = KubeConfig.from_service_account()
        if config is None:
            config = _from_files(kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_FILE)
        single = config.get(context or None)
    except ConfigError as error:
        text = str(error)[:1].lower() + str(error)[1:]
        raise BadKubeConfig(f"{text}; name a kubeconfig with --kubeconfig or in KUBECONFIG") from None
    except KeyError as error:
        raise BadKubeConfig(f"the kubeconfig's context names {error}, which is not in the file") from None
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise BadKubeConfig(f"the kubeconfig is not in the form of one: {error}") from None
    if single is None:
        raise BadKubeConfig("the kubeconfig has no current context; choose one with --context")
    user = single.user or User()
    if (plugin := user.exec) is not None:
        # lightkube only knows v1beta1 of the plugins' API; the answers of v1 have the same form.
        told = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
        env = [*(plugin.env or []), NameValue("KUBERNETES_EXEC_INFO", json.dumps(told))]
        version = _EXEC_V1BETA1 if plugin.apiVersion == _EXEC_V1 else plugin.apiVersion
        user.exec = UserExec(version, plugin.command, env, plugin.args, plugin.installHint)
    return single._replace(user=user)


def open_client(config: SingleConfig) -> httpx2.AsyncClient:
    """An HTTP client for the API server, with its base address and credentials.

    Raises:
        BadKubeConfig: a certificate is missing or invalid, or the authentication method is unknown.
    """
    try:
        return AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S)))
    except (ConfigError, OSError, ValueError) as error:
        raise BadKubeConfig(f"the kubeconfig cannot be used: {error}") from None


def _from_files(paths: str) -> KubeConfig:
    """One kubeconfig of several files, as kubectl merges them: of equal names the first counts."""
    merged: dict[str, Any] = {"clusters": [], "users": [], "contexts": []}
    seen: set[tuple[str, str]] = set()
    files = [path for text in paths.split(os.pathsep) if text and (path := Path(text).expanduser()).is_file()]
    if not files:
        raise BadKubeConfig(f"there is no kubeconfig at {paths}; name one with --kubeconfig or in KUBECONFIG")
    for path in files:
        try:
            document = read_yaml_file(path)
        except BadYaml as error:
            raise BadKubeConfig(str(error)) from None
        if not isinstance(document, dict):
            raise BadKubeConfig(f"{path} is not a kubeconfig: it holds no mapping")
        for section, inner, keys in _FILES_IN:  # the names of other files are relative to its own folder
            for body in [entry.get(inner) or {} for entry in document.get(section) or []]:
                body |= {key: str(path.parent / body[key]) for key in keys if body.get(key)}
        merged["current-context"] = merged.get("current-context") or document.get("current-context")
        for section in ("clusters", "users", "contexts"):
            for entry in document.get(section) or []:
                if (section, entry["name"]) not in seen:
                    seen.add((section, entry["name"]))
                    merged[section].append(entry)
    return KubeConfig.from_dict(merged, fname=files[0])
