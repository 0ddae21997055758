"""A cluster on one machine: an API server, nodes, and pods that are local processes."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drivetrain_cluster_double.api import Api, WriteOptions
from drivetrain_cluster_double.catalog import Catalog
from drivetrain_cluster_double.certificates import make_certificates
from drivetrain_cluster_double.controllers import Controllers
from drivetrain_cluster_double.credentials import Credentials
from drivetrain_cluster_double.dispatch import Dispatcher, read_documents
from drivetrain_cluster_double.kubelet import Kubelet, KubeletConfig
from drivetrain_cluster_double.machines import Machines
from drivetrain_cluster_double.proxies import Proxies
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.scheduler import Scheduler
from drivetrain_cluster_double.selectors import parse_labels
from drivetrain_cluster_double.server import ApiServer
from drivetrain_cluster_double.store import Key, Store
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from drivetrain_cluster_double.faults import Faults

__all__ = ["ClusterDouble"]

_Item = dict[str, Any]


class ClusterDouble:
    """A cluster of Kubernetes on this machine, without containers and without root.

    The API server behaves like the real one where clients look: versions, watches,
    validation, server-side apply, roles. Pods are local processes: their images are not
    looked at, volumes are not mounted, and only the first container runs. Each pod has an
    address of its own in 127.0.0.0/8, and so has each service, whose connections go to a
    pod that is ready. There are no names of services to look up: processes find addresses
    in their environment, as `NAME_SERVICE_HOST`.

    It is for tests and for trying things out; nothing in it is safe against others on the
    machine but what the token and the certificates protect.

    Args:
        nodes: How many nodes there are at first.
        run: `processes`, or `simulated`: pods say at once that they run, and end when
            `finish` is called.
        folder: Where logs, certificates and configurations are kept; one that is removed
            at the end by default.
        is_secure: Whether the API is served with TLS.
        port: Of the API; any by default.
        backoff_s: How long a process that has ended waits to be started again.
        bookmark_s: How often watches are told which version they have seen.
        num_changes: How many changes of each kind are remembered for watches.
        certificate_days: How long the server's certificate is good; a negative number
            makes one that has expired.

    Attributes:
        token: Of the administrator.

    Raises:
        MissingLibraryError: What this package declares is missing.
        ProgramError: An option is not valid.

    Example:
        >>> with ClusterDouble(nodes=2) as cluster:  # doctest: +SKIP
        ...     print(cluster.kubeconfig)
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        run: Literal["processes", "simulated"] = "processes",
        folder: Path | str | None = None,
        is_secure: bool = True,
        port: int = 0,
        backoff_s: float = 10.0,
        bookmark_s: float = 1.0,
        num_changes: int = 20_000,
        certificate_days: int = 1,
    ) -> None:
        if run not in {"processes", "simulated"} or nodes < 0:
            message = (
                "run must be 'processes' or 'simulated' and nodes at least 0, got "
                f"{run!r} and {nodes}"
            )
            raise ProgramError(message)
        self._is_own = folder is None
        self._folder = Path(folder or tempfile.mkdtemp(prefix="cluster-"))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificates = None
        if is_secure:
            certificates = make_certificates(self._folder, days=certificate_days)
        self._authority = certificates.authority if certificates else None
        self._credentials = Credentials(
            self._folder, self._authority, lambda: self._server.url
        )
        self.token = self._credentials.token
        self.api = Api(Store(num_changes), Catalog())
        self._changed = threading.Condition()
        self._unsubscribe = self.api.store.subscribe(self._note)
        self._kubelet = Kubelet(
            self.api,
            KubeletConfig(
                folder=self._folder,
                has_processes=run == "processes",
                backoff_s=backoff_s,
                variables=self._pod_variables,
            ),
        )
        self._dispatcher = Dispatcher(
            self.api,
            read_log=self._kubelet.log,
            make_token=self.service_account_token,
        )
        self._server = ApiServer(
            self._dispatcher,
            self._credentials.users,
            certificates=certificates,
            port=port,
            bookmark_s=bookmark_s,
        )
        self._controllers = Controllers(self.api)
        self._scheduler = Scheduler(self.api)
        # Pods that are simulated have nothing to connect to.
        self._proxies = Proxies(self.api.store) if run == "processes" else None
        self._machines = Machines(self.api, self._kubelet)
        self._num_nodes = nodes

    @property
    def _parts(self) -> list[Controllers | Kubelet | Scheduler | Proxies]:
        proxies = [self._proxies] if self._proxies is not None else []
        return [self._controllers, *proxies, self._kubelet, self._scheduler]

    def start(self) -> None:
        """Begins to serve; `with` does it.

        Raises:
            OSError: The port is taken.
        """
        self._server.start()
        for part in self._parts:
            part.start()
        for name in ("default", "kube-system"):
            self.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        self.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "cluster-admin"},
                "rules": [everything],
            }
        )
        for _ in range(self._num_nodes):
            self.add_node()

    def stop(self) -> None:
        """Ends everything, every process of every pod included; `with` does it."""
        self._unsubscribe()
        self._machines.stop()
        self._server.stop()
        for part in reversed(self._parts):
            part.stop()
        if self._is_own:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # How it is reached

    @property
    def url(self) -> str:
        """Where the API is."""
        return self._server.url

    @property
    def ca_file(self) -> Path | None:
        """What clients trust; None if there is no TLS."""
        return self._authority

    @property
    def kubeconfig(self) -> Path:
        """The file with which clients are the administrator."""
        return self._credentials.admin_file()

    def kubeconfig_for(self, namespace: str, account: str) -> Path:
        """Returns the file with which clients are a service account.

        Args:
            namespace: Of the account, and of what clients ask for by default.
            account: Its name.
        """
        return self._credentials.file_of(namespace, account)

    def service_account_token(self, namespace: str, account: str) -> str:
        """Returns a token with which a caller is a service account."""
        return self._credentials.token_of(namespace, account)

    def revoke(self, namespace: str, account: str) -> None:
        """Lets the token of a service account be good no more; the next one is new."""
        self._credentials.revoke(namespace, account)

    def _pod_variables(self, pod: _Item) -> dict[str, str]:
        account = pod["spec"].get("serviceAccountName", "default")
        namespace = pod["metadata"]["namespace"]
        # In place of the token that a real pod has mounted.
        return {"KUBECONFIG": str(self.kubeconfig_for(namespace, account))}

    # What is in it

    def apply(self, what: _Item | Iterable[_Item] | str) -> list[_Item]:
        """Applies objects, as the administrator does, whoever manages their fields.

        Args:
            what: An object, some, or YAML.

        Returns:
            The objects as they are then.

        Raises:
            StatusError: One breaks a rule.
        """
        items = [what] if isinstance(what, dict) else what
        if isinstance(items, str):
            items = read_documents(items)
        found = []
        for item in items:
            kind = self.api.catalog.named(item["kind"], item["apiVersion"])
            version = item["apiVersion"].rpartition("/")[2]
            metadata = item["metadata"]
            namespace = (
                metadata.get("namespace", "default") if kind.is_namespaced else ""
            )
            options = WriteOptions(
                manager="admin", version=version, is_forced=True, validation="Strict"
            )
            row = self.api.patch(
                kind,
                namespace,
                metadata["name"],
                item,
                "application/apply-patch+yaml",
                options,
            )
            found.append(row.item)
            if kind.name == "CustomResourceDefinition":
                self.wait_for(partial(self._is_served, row.item))
        return found

    def _is_served(self, definition: _Item) -> bool:
        spec = definition["spec"]
        place = (spec["group"], spec["names"]["plural"])
        return any((kind.group, kind.plural) == place for kind in self.api.catalog)

    def get(self, kind: str, name: str, namespace: str = "default") -> _Item | None:
        """Returns an object, which must not be changed, or None.

        Args:
            kind: As `Pod`, `pods` or `po`.
            name: Of the object.
            namespace: Of the object, if its kind has namespaces.
        """
        found = self.api.catalog.named(kind)
        key = Key(namespace if found.is_namespaced else "", name)
        row = self.api.store.get(found.table, key)
        return row.item if row else None

    def list(
        self, kind: str, namespace: str = "", selector: str = ""
    ) -> Sequence[_Item]:
        """Returns objects by their names; they must not be changed.

        Args:
            kind: As `Pod`, `pods` or `po`.
            namespace: Of the objects; all by default.
            selector: Of their labels.
        """
        table = self.api.store.table(self.api.catalog.named(kind).table)
        with self.api.store.lock:
            found = sorted(
                table.find(namespace, parse_labels(selector)),
                key=lambda entry: entry[0],
            )
        return [row.item for _, row in found]

    def delete(
        self, kind: str, name: str, namespace: str = "default", propagation: str = ""
    ) -> None:
        """Deletes an object.

        Args:
            kind: As `Pod`, `pods` or `po`.
            name: Of the object.
            namespace: Of the object, if its kind has namespaces.
            propagation: `Background`, `Foreground` or `Orphan`.

        Raises:
            StatusError: It is not there.
        """
        found = self.api.catalog.named(kind)
        options = DeleteOptions(propagation=propagation)
        self.api.delete(found, namespace if found.is_namespaced else "", name, options)

    def wait_for(
        self, condition: Callable[[], object], timeout_s: float = 60.0
    ) -> None:
        """Waits until something holds; it is looked at after each change.

        Args:
            condition: What is to hold.
            timeout_s: How long to wait.

        Raises:
            TimeoutError: It did not hold in time.
        """
        end_s = time.monotonic() + timeout_s
        while not condition():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                message = f"what was waited for did not come in {timeout_s:g} s"
                raise TimeoutError(message)
            with self._changed:
                # What is looked at may be something else than objects.
                self._changed.wait(min(left_s, 0.05))

    def _note(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    # Pods and nodes

    def logs(self, name: str, namespace: str = "default") -> str:
        """Returns what a pod has written, also of one that is gone."""
        return self._kubelet.log(namespace, name).decode(errors="replace")

    def finish(
        self, name: str, namespace: str = "default", *, exit_code: int = 0
    ) -> None:
        """Lets a pod end by itself, in a cluster whose pods are simulated.

        Raises:
            StatusError: The pod is not there.
        """
        self._kubelet.finish(self._uid(name, namespace), exit_code)

    def kill(
        self, name: str, namespace: str = "default", *, reason: str = "OOMKilled"
    ) -> None:
        """Kills the processes of a pod, as the kernel does when memory is short.

        Args:
            name: Of the pod.
            namespace: Of the pod.
            reason: What the status of its container says.

        Raises:
            StatusError: The pod is not there.
        """
        self._kubelet.kill(self._uid(name, namespace), reason)

    def _uid(self, name: str, namespace: str) -> str:
        row = self.api.get(self.api.catalog.named("Pod"), namespace, name)
        uid: str = row.item["metadata"]["uid"]
        return uid

    def add_node(
        self,
        name: str = "",
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        pods: int = 110,
        extended: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """Adds a node; returns its name.

        Args:
            name: Of the node; `node-0`, `node-1` ... by default.
            cpu: How many cores it says to have.
            memory: How much memory it says to have.
            pods: How many pods it takes.
            extended: What else it has, as `{"nvidia.com/gpu": "8"}`.
            labels: By which pods select it.
            taints: What pods have to tolerate.

        Raises:
            StatusError: There is a node of this name, or something is not valid.
        """
        capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), **(extended or {})}
        return self._machines.add(name, capacity, labels or {}, taints)

    def remove_node(self, name: str) -> None:
        """Takes a node away, without notice: its processes die, its pods are deleted.

        Raises:
            StatusError: There is no such node.
        """
        self._machines.remove(name)

    def fail_node(self, name: str) -> None:
        """Lets a node fail: its processes die, and nobody says so but the node's taint.

        Its pods go on to be shown as running, but not ready, until they are deleted by
        force or the node is removed, as in a real cluster.

        Raises:
            StatusError: There is no such node.
        """
        self._machines.fail(name)

    def reclaim(self, name: str, *, notice_s: float = 30.0) -> None:
        """Takes a node back as providers of spot machines do: with a notice.

        The node gets a taint, and its pods the condition `DisruptionTarget`; when the time
        is over, the node is gone.

        Args:
            name: Of the node.
            notice_s: How long it stays.

        Raises:
            StatusError: There is no such node.
        """
        self._machines.reclaim(name, notice_s)

    def cancel_reclaim(self, name: str) -> None:
        """Leaves a node that was to be taken back where it is.

        Raises:
            StatusError: There is no such node.
        """
        self._machines.cancel_reclaim(name)

    # What goes wrong, and what was asked

    @property
    def faults(self) -> Faults:
        """What goes wrong with calls."""
        return self._server.faults

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """How many calls there were, by verb and resource."""
        return self._server.calls

    def compact(self) -> None:
        """Forgets all changes: whoever asks for older ones gets 410 and lists again."""
        with self.api.store.lock:
            self.api.store.compact()

    def drop_watches(self) -> None:
        """Cuts all watches, as when the API server is replaced."""
        self._server.drop_watches()
