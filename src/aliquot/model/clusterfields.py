"""Fields of a pod that mean something in a cluster only.

They are named so that one SharePod can be applied to a cluster and to one machine: here they are accepted and have no
effect, and a misspelt one is still an error. Source: the Kubernetes API, core/v1 of 1.37.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ClusterMetadata(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Fields that an API server adds to metadata."""

    uid: Any = None
    generate_name: Any = None
    resource_version: Any = None
    generation: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    owner_references: Any = None
    finalizers: Any = None
    managed_fields: Any = None
    self_link: Any = None


class ClusterPodSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Fields of a pod for a scheduler, a kubelet and a network."""

    active_deadline_seconds: Any = None
    affinity: Any = None
    automount_service_account_token: Any = None
    dns_config: Any = None
    dns_policy: Any = None
    enable_service_links: Any = None
    host_aliases: Any = None
    host_ipc: Any = msgspec.field(default=None, name="hostIPC")
    host_network: Any = None
    host_pid: Any = msgspec.field(default=None, name="hostPID")
    host_users: Any = None
    hostname: Any = None
    hostname_override: Any = None
    image_pull_secrets: Any = None
    node_name: Any = None
    os: Any = None
    overhead: Any = None
    preemption_policy: Any = None
    priority: Any = None
    priority_class_name: Any = None
    readiness_gates: Any = None
    resource_claims: Any = None
    resources: Any = None
    runtime_class_name: Any = None
    scheduler_name: Any = None
    scheduling_gates: Any = None
    scheduling_group: Any = None
    security_context: Any = None
    service_account: Any = None
    service_account_name: Any = None
    set_hostname_as_fqdn: Any = msgspec.field(default=None, name="setHostnameAsFQDN")
    share_process_namespace: Any = None
    subdomain: Any = None
    topology_spread_constraints: Any = None


class ClusterContainer(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Fields of a container for a kubelet and a runtime."""

    lifecycle: Any = None
    liveness_probe: Any = None
    readiness_probe: Any = None
    startup_probe: Any = None
    resize_policy: Any = None
    restart_policy_rules: Any = None
    stdin: Any = None
    stdin_once: Any = None
    termination_message_path: Any = None
    termination_message_policy: Any = None
    tty: Any = None
    volume_devices: Any = None


def given(spec: msgspec.Struct, base: type[msgspec.Struct]) -> list[str]:
    """The API's names of the fields of `base` that were given in `spec`."""
    return [field.encode_name for field in msgspec.structs.fields(base) if getattr(spec, field.name) is not None]
