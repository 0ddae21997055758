"""A cluster on one machine: an API server, nodes, and pods that are local processes."""

from __future__ import annotations

import copy
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml

from drivetrain_cluster_double.api import Api, DeleteOptions, WriteOptions
from drivetrain_cluster_double.controllers import Controllers
from drivetrain_cluster_double.credentials import Credentials, make_certificate
from drivetrain_cluster_double.dispatch import Dispatcher
from drivetrain_cluster_double.faults import Faults
from drivetrain_cluster_double.kinds import Catalog
from drivetrain_cluster_double.kubelet import Kubelet
from drivetrain_cluster_double.loop_thread import LoopThread
from drivetrain_cluster_double.machines import Machines
from drivetrain_cluster_double.patches import merge_difference
from drivetrain_cluster_double.proxies import Proxies
from drivetrain_cluster_double.scheduler import Scheduler
from drivetrain_cluster_double.selectors import Selector, parse_labels
from drivetrain_cluster_double.server import ApiServer
from drivetrain_cluster_double.store import Key, Store
from drivetrain_core import ProgramError

_Item = dict[str, Any]


class ClusterDouble(Machines):
    """A cluster of Kubernetes on this machine, without containers and without root.

    The API server answers as the real one does, for those kinds and verbs that the
    operator and kubectl use: versions, watches, validation, roles. Whatever else is asked
    for, as server-side apply, is answered with 501. Pods are local processes: their images
    are not looked at, and only the first container runs. Of volumes there are empty ones,
    of whose folders variables are told in the place of what is mounted. Each pod
    has an address of its own in 127.0.0.0/8, and so has each service, whose connections go
    to a pod that is ready. There are no names of services to look up: processes find
    addresses in their environment, as `NAME_SERVICE_HOST`.

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

    Attributes:
        token: Of the administrator.

    Raises:
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
        self._authority = None
        if is_secure:
            self._authority = make_certificate(self._folder)
        self._credentials = Credentials(
            self._folder, self._authority, lambda: self._server.url
        )
        self.token = self._credentials.token
        self.api = Api(Store(num_changes), Catalog())
        self._changed = threading.Condition()
        self._unsubscribe = self.api.store.subscribe(self._note)
        self._thread = LoopThread()
        self._kubelet = Kubelet(
            self.api,
            self._thread,
            folder=self._folder,
            has_processes=run == "processes",
            backoff_s=backoff_s,
            variables=self._pod_variables,
        )
        self._server = ApiServer(
            Dispatcher(self.api, self._kubelet.log),
            self._credentials.users,
            certificate=self._authority and self._folder / "tls.pem",
            port=port,
            bookmark_s=bookmark_s,
        )
        self._applied: dict[str, _Item] = {}
        Controllers(self.api, self._thread)
        Scheduler(self.api, self._thread)
        super().__init__(self.api, self._kubelet, self._thread)
        self._num_nodes = nodes
        # Pods that are simulated have nothing to connect to.
        if run == "processes":
            Proxies(self.api.store, self._thread)

    def start(self) -> None:
        """Begins to serve; `with` does it.

        Raises:
            OSError: The port is taken.
        """
        self._server.start()
        self._thread.start()
        for name in ("default", "kube-system"):
            namespace = {"apiVersion": "v1", "kind": "Namespace"}
            self.apply({**namespace, "metadata": {"name": name}})
        for _ in range(self._num_nodes):
            self.add_node()

    def stop(self) -> None:
        """Ends everything, every process of every pod included; `with` does it."""
        self._unsubscribe()
        super().stop()
        self._server.stop()
        self._thread.stop()
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

    def _pod_variables(self, pod: _Item) -> dict[str, str]:
        account = pod["spec"].get("serviceAccountName", "default")
        namespace = pod["metadata"]["namespace"]
        # In place of the token that a real pod has mounted.
        return {"KUBECONFIG": str(self.kubeconfig_for(namespace, account))}

    # What is in it

    def apply(self, what: _Item | Iterable[_Item] | str) -> list[_Item]:
        """Applies objects, as `kubectl apply` does: what was applied before and is not
        there any more is taken away, what others have written stays.

        Args:
            what: An object, some, or YAML.

        Returns:
            The objects as they are then.

        Raises:
            StatusError: One breaks a rule.
        """
        items = [what] if isinstance(what, dict) else what
        if isinstance(items, str):
            items = [item for item in yaml.safe_load_all(items) if item]
        return [self._apply(item) for item in items]

    def _apply(self, item: _Item) -> _Item:
        kind = self.api.catalog.named(item["kind"], item["apiVersion"])
        metadata = item["metadata"]
        namespace = metadata.get("namespace", "default") if kind.is_namespaced else ""
        version = item["apiVersion"].rpartition("/")[2]
        options = WriteOptions(version=version, validation="Strict")
        with self.api.store.lock:
            row = self.api.store.get(kind.table, Key(namespace, metadata["name"]))
            if row is None:
                row = self.api.create(kind, namespace, item, options)
            else:
                before = self._applied.get(row.item["metadata"]["uid"], {})
                patch = merge_difference(before, {"status": {}, **item})
                row = self.api.patch(
                    kind, namespace, metadata["name"], patch, options=options
                )
            # Finalizers and owners that others have written are not taken away.
            kept = {k: metadata[k] for k in ("labels", "annotations") if k in metadata}
            last = copy.deepcopy({**item, "metadata": kept, "status": {}})
            self._applied[row.item["metadata"]["uid"]] = last
        if kind.name == "CustomResourceDefinition":
            names = row.item["spec"]["group"], row.item["spec"]["names"]["plural"]
            self.wait_for(lambda: self.api.catalog.of_table(names))
        return row.item

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
                table.find(namespace, Selector(parse_labels(selector))),
                key=lambda entry: entry[0],
            )
        return [row.item for _, row in found]

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Deletes an object.

        Args:
            kind: As `Pod`, `pods` or `po`.
            name: Of the object.
            namespace: Of the object, if its kind has namespaces.

        Raises:
            StatusError: It is not there.
        """
        found = self.api.catalog.named(kind)
        place = namespace if found.is_namespaced else ""
        self.api.delete(found, place, name, DeleteOptions())

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
        self._thread.call(self._kubelet.finish, self._uid(name, namespace), exit_code)

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
        self._thread.call(self._kubelet.kill, self._uid(name, namespace), reason)

    def _uid(self, name: str, namespace: str) -> str:
        row = self.api.get(self.api.catalog.named("Pod"), namespace, name)
        uid: str = row.item["metadata"]["uid"]
        return uid

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
