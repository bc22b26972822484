"""Service accounts with the rights that a test gives them."""

from typing import Any

from cluster.control_plane import ControlPlane

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def token_of(plane: ControlPlane, namespace: str, name: str) -> str:
    """A new service account's token."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    plane.api.create(accounts, {"metadata": {"name": name}})
    made: dict[str, Any] = plane.api.call("POST", f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 3600}})
    return str(made["status"]["token"])


def allow(plane: ControlPlane, namespace: str, name: str, resource: str, *, within: str = "", group: str = "") -> None:
    """Let an account list something, in one namespace or in all."""
    where = f"{RBAC}/namespaces/{within}" if within else RBAC
    kind = "Role" if within else "ClusterRole"
    made = f"{namespace}-{name}-{resource}"
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": ["list"]}]
    plane.api.create(f"{where}/{kind.lower()}s", {"metadata": {"name": made}, "rules": rules})
    body = {
        "metadata": {"name": made},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": made},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    plane.api.create(f"{where}/{kind.lower()}bindings", body)
