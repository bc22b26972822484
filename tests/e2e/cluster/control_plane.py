"""etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, as one object that tests hold."""

import http.client
import itertools
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from .api import Api, ApiError
from .fake import fake_node
from .images import BUSYBOX
from .namespaces import HERE, NODE_ADDRESS, SERVICE_ADDRESS, Inside, Namespaces
from .parts import Part, until
from .pki import Authority, Pair
from .prepare import Parts

SERVICES = "10.250.0.0/24"
ETCD = "http://127.0.0.1:2379"


class ControlPlane:
    """A running control plane; `parts` has each program by its name.

    `url`, `kubeconfig`, `authority`, `client` (certificate and key of an administrator) are good outside and inside
    the namespaces alike. `rooms` runs programs inside and makes sockets there. `flags` are the API server's and the
    controller manager's.
    """

    def __init__(self, programs: Parts, *, apiserver_flags: Sequence[str] = (), flags: Sequence[str] = ()) -> None:
        self.programs = programs
        self.rooms = Namespaces(programs.program("busybox"))
        self.parts: dict[str, Part] = {}
        self.started_in_s = 0.0
        self._apiserver_flags = (*flags, *apiserver_flags)
        self._controllers_flags = tuple(flags)
        self._scheduler_flags: tuple[str, ...] = ()
        self._relay: Inside | None = None
        self._numbers = itertools.count()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    def start(self) -> None:
        """From nothing to a control plane that schedules.

        Raises:
            RuntimeError: a part did not start; the text has the end of its log.
        """
        began = time.monotonic()
        self.rooms.open()
        try:
            self._prepare()
            self._start_parts()
        except BaseException:
            self.close()
            raise
        self.started_in_s = time.monotonic() - began

    def close(self) -> None:
        """Ends everything and removes every trace."""
        self.rooms.close()
        self._listening.close()

    def reboot(self) -> None:
        """Everything ends at once, as when the power goes, and starts again on the same disk."""
        for part in self.parts.values():
            part.kill()
        self.rooms.close(keep=True)
        self.rooms.open()
        self._start_relays()
        self._start_parts()

    # -- what tests use ----------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, input_: str | None = None, check: bool = True, timeout_s: float = 60.0) -> str:
        """Runs kubectl as the administrator and returns what it printed.

        Raises:
            RuntimeError: it failed and `check` is set; the text is its error.
        """
        environment = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.rooms.state), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [self.programs.program("kubectl"), *arguments],
            input=input_ or "",
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def schedule_with(self, configuration: str | Path | Mapping[str, Any], *flags: str) -> None:
        """Restarts kube-scheduler with this KubeSchedulerConfiguration (text, file or object) and further flags.

        How it reaches the API server and that it elects no leader is filled in; everything else is as given.
        """
        self._scheduler_flags = flags
        if isinstance(configuration, Path):
            configuration = configuration.read_text()
        given = yaml.safe_load(configuration) if isinstance(configuration, str) else dict(configuration)
        given.setdefault("apiVersion", "kubescheduler.config.k8s.io/v1")
        given.setdefault("kind", "KubeSchedulerConfiguration")
        connection = {"qps": 1000, "burst": 2000, **given.get("clientConnection", {})}
        given["clientConnection"] = {**connection, "kubeconfig": str(self._kubeconfigs["scheduler"])}
        given["leaderElection"] = {"leaderElect": False}
        (self.rooms.state / "scheduler.yaml").write_text(yaml.safe_dump(given))
        if "kube-scheduler" in self.parts:
            self["kube-scheduler"].restart()

    def user(self, name: str, group: str = "") -> Path:
        """A kubeconfig for a user of this name, who may do what RBAC gives them."""
        file = "".join(letter if letter.isalnum() else "-" for letter in name)
        pair = self.pki.client(f"user-{file}", name, group)
        return self.pki.kubeconfig(self.rooms.state / "pki" / f"{file}.kubeconfig", self.url, pair)

    def wait_for_kinds(self) -> None:
        """Waits until every kind that was defined is served; `kubectl wait` fails on one that has no status yet."""

        def served() -> bool:
            kinds = self.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
            conditions = [kind.get("status", {}).get("conditions") or [] for kind in kinds]
            return all(
                {"Established": "True"}.items() <= {c["type"]: c["status"] for c in of}.items() for of in conditions
            )

        until(served, "the kinds that were defined")

    def make_namespace(self, name: str) -> None:
        """Makes a namespace and waits until pods can be created in it."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        until(lambda: self._has_account(name), f"the service account `default` of {name}")

    def remove_namespace(self, name: str) -> None:
        """Deletes a namespace and waits until its pods are gone; pods get no time to say goodbye."""
        pods = f"/api/v1/namespaces/{name}/pods"
        self.api.call("DELETE", pods, {"gracePeriodSeconds": 0})
        until(lambda: not self.api.get(pods)["items"], f"the end of the pods of {name}", 60)
        self.api.delete(f"/api/v1/namespaces/{name}")

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """A pod as the API server has it now."""
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def create_pod(self, namespace: str, name: str, image: str = BUSYBOX, *command: str, **spec: Any) -> None:
        """Creates a pod of one container `main`; further fields of the pod's spec as keywords."""
        container = {"name": "main", "image": image, "imagePullPolicy": "Never"}
        if command:
            container["command"] = list(command)
        container |= spec.pop("container", {})
        body = {"metadata": {"name": name}, "spec": {"containers": [container], "restartPolicy": "Never", **spec}}
        body["spec"].setdefault("terminationGracePeriodSeconds", 1)
        self.api.create(f"/api/v1/namespaces/{namespace}/pods", body)

    def wait_running(self, namespace: str, name: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Waits until a pod is bound and Running, and returns it.

        Raises:
            RuntimeError: it has failed, which is for good: kubelet does not start it again.
        """

        def look() -> dict[str, Any] | None:
            pod = self.pod(namespace, name)
            if pod["status"]["phase"] == "Failed":
                raise RuntimeError(f"pod {namespace}/{name} has failed: {pod['status']}")
            return pod if pod["status"]["phase"] == "Running" else None

        return until(look, f"pod {namespace}/{name} Running", timeout_s)

    def fake_nodes(
        self, count: int, profile: str = "v100", *, gpus: int = 0, prefix: str = "", apart: bool = False
    ) -> list[str]:
        """Adds nodes with GPUs that kwok plays, and waits until they are ready; returns their names.

        `profile` is a GPU profile of the emulated driver, which also says the topology; `gpus` 0 is as many as that
        topology has. Pods bound to such a node become Running and do nothing.
        """
        names = [f"{prefix or profile}-{number}" for number in itertools.islice(self._numbers, count)]
        self.api.create("/api/v1/nodes", *(fake_node(name, profile, gpus, apart=apart) for name in names))
        until(lambda: set(names) <= self.ready_nodes(), f"{count} fake nodes", 30 + count / 10)
        return names

    def ready_nodes(self) -> set[str]:
        """Names of the nodes that are Ready and take pods."""
        ready = set()
        for node in self.api.get("/api/v1/nodes")["items"]:
            conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", ())}
            taints = {taint["key"] for taint in node["spec"].get("taints", ())}
            if conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints:
                ready.add(node["metadata"]["name"])
        return ready

    def remove_nodes(self, names: Sequence[str]) -> None:
        for name in names:
            self.api.delete(f"/api/v1/nodes/{name}")

    @contextmanager
    def exposed(self, port: int) -> Iterator[str]:
        """The address outside at which a port inside is reached, as with kubectl port-forward."""
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            relay = self._carry(listening, port)
            try:
                yield f"http://localhost:{listening.getsockname()[1]}"
            finally:
                relay.end()

    @contextmanager
    def partition(self) -> Iterator[None]:
        """Cuts every connection from outside to the API server; what connects meanwhile waits, the inside goes on."""
        assert self._relay
        self._relay.end()
        try:
            yield
        finally:
            self._relay = self._carry(self._listening)

    def cut_watches(self) -> None:
        """Breaks every connection from outside, watches among them, and is there again at once."""
        with self.partition():
            pass

    def compact(self) -> int:
        """Makes etcd forget all but the newest state, so that older resource versions are gone; returns its revision.

        The API server still answers from its cache what it has there; after its restart nothing older is left.
        """
        revision = int(self._ask_etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"])
        self._ask_etcd("/v3/kv/compaction", {"revision": revision, "physical": True})
        return revision

    def answers(self, port: int, path: str, *, tls: bool = False, address: str = "127.0.0.1") -> bool:
        """Whether an HTTP server inside answers this path with 200."""
        connection = http.client.HTTPConnection(address, port, timeout=2)
        try:
            connection.sock = self.rooms.connect(port, address, timeout_s=2)
            if tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                connection.sock = context.wrap_socket(connection.sock)
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ask_etcd(self, path: str, body: dict[str, Any]) -> Any:
        """A call through etcd's JSON gateway."""
        connection = http.client.HTTPConnection("127.0.0.1", 2379, timeout=10)
        connection.sock = self.rooms.connect(2379)
        with closing(connection):
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())

    # -- how it is made ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        state = self.rooms.state
        self.port = self._listening.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self.pki = pki = Authority(state / "pki")
        kubernetes = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        addresses = ["127.0.0.1", "localhost", NODE_ADDRESS, SERVICE_ADDRESS]
        self._server = pki.server("apiserver", "kube-apiserver", [*addresses, *kubernetes])
        self._to_kubelet = pki.client("apiserver-to-kubelet", "kube-apiserver-kubelet-client", "system:masters")
        self._accounts = pki.service_account_keys()
        self.authority = pki.certificate
        self.client: Pair = pki.client("admin", "admin", "system:masters")
        self.kubeconfig = pki.kubeconfig(state / "kubeconfig", self.url, self.client)
        self._kubeconfigs = {
            "controllers": self.user("system:kube-controller-manager"),
            "scheduler": self.user("system:kube-scheduler"),
        }
        self.api = Api("127.0.0.1", self.port, self.authority, self.client)
        self.schedule_with({})
        commands = {
            "etcd": (self._etcd, lambda: self.answers(2379, "/health")),
            "kube-apiserver": (self._apiserver, self._apiserver_ready),
            "kube-controller-manager": (self._controllers, lambda: self.answers(10257, "/healthz", tls=True)),
            "kube-scheduler": (self._scheduler, lambda: self.answers(10259, "/readyz", tls=True)),
            "kwok": (self._kwok, lambda: self.answers(10247, "/healthz")),
        }
        self.parts = {name: Part(name, self.rooms, command, ready) for name, (command, ready) in commands.items()}
        self._start_relays()

    def _start_relays(self) -> None:
        """Machine -> API server, and inside the cluster's own name for it (10.250.0.1:443) -> API server."""
        self._relay = self._carry(self._listening)
        with self.rooms.listener(443, SERVICE_ADDRESS) as service:
            self._carry(service)

    def _carry(self, listening: socket.socket, port: int = 0) -> Inside:
        number = listening.fileno()
        command = [sys.executable, str(HERE / "relay.py"), str(number), "127.0.0.1", str(port or self.port)]
        return self.rooms.popen(command, pass_fds=[number])

    def _start_parts(self) -> None:
        self["etcd"].start()
        self["kube-apiserver"].start()
        rest = [self[name] for name in ("kube-controller-manager", "kube-scheduler", "kwok")]
        for part in rest:
            part.launch()
        for part in rest:
            part.wait_ready()
        until(lambda: self._has_account("default"), "the service account `default`")

    def _apiserver_ready(self) -> bool:
        try:
            return self.api.get("/readyz") == "ok"
        except ApiError:
            return False

    def _has_account(self, namespace: str) -> bool:
        try:
            return bool(self.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))
        except ApiError:
            return False

    def _etcd(self) -> list[str]:
        peer = "http://127.0.0.1:2380"
        return [
            self.programs.program("etcd"),
            f"--data-dir={self.rooms.state}/etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _apiserver(self) -> list[str]:
        return [
            self.programs.program("kube-apiserver"),
            f"--etcd-servers={ETCD}",
            f"--secure-port={self.port}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={NODE_ADDRESS}",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.rooms.state}/apiserver",
            f"--tls-cert-file={self._server.certificate}",
            f"--tls-private-key-file={self._server.key}",
            f"--client-ca-file={self.authority}",
            f"--requestheader-client-ca-file={self.authority}",
            "--requestheader-allowed-names=front-proxy",
            f"--kubelet-client-certificate={self._to_kubelet.certificate}",
            f"--kubelet-client-key={self._to_kubelet.key}",
            f"--kubelet-certificate-authority={self.authority}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._accounts.certificate}",
            f"--service-account-signing-key-file={self._accounts.key}",
            "--allow-privileged=true",
            *self._apiserver_flags,
        ]

    def _controllers(self) -> list[str]:
        mine = self._kubeconfigs["controllers"]
        return [
            self.programs.program("kube-controller-manager"),
            *(f"--{use}kubeconfig={mine}" for use in ("", "authentication-", "authorization-")),
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.rooms.state}/controllers",
            "--leader-elect=false",
            f"--service-account-private-key-file={self._accounts.key}",
            f"--root-ca-file={self.authority}",
            "--use-service-account-credentials=true",
            # With the default rates the service accounts of a new cluster take five seconds to appear.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *self._controllers_flags,
        ]

    def _scheduler(self) -> list[str]:
        mine = self._kubeconfigs["scheduler"]
        return [
            self.programs.program("kube-scheduler"),
            f"--config={self.rooms.state}/scheduler.yaml",
            f"--authentication-kubeconfig={mine}",
            f"--authorization-kubeconfig={mine}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.rooms.state}/scheduler",
            *self._scheduler_flags,
        ]

    def _kwok(self) -> list[str]:
        parallel = {"podPlayStageParallelism": 16, "nodePlayStageParallelism": 4, "nodeLeaseParallelism": 4}
        settings = self.rooms.state / "kwok.yaml"
        kind = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
        settings.write_text(yaml.safe_dump({**kind, "options": parallel}))
        return [
            self.programs.program("kwok"),
            f"--kubeconfig={self.kubeconfig}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
            "--server-address=127.0.0.1:10247",
            f"--config={self.programs.stages}",
            f"--config={settings}",
        ]
