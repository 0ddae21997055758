"""What tests of the operator share: jobs, definitions, a running operator."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import yaml

import drivetrain_cloud.kubernetes
from drivetrain_cloud.kubernetes.api_client import ApiClient
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.operator import Operator
from drivetrain_cloud.spot.job_control import JobView, SaveResult
from drivetrain_elastic import MasterError

FOLDER = Path(drivetrain_cloud.kubernetes.__file__).parent


def definitions():
    paths = sorted(FOLDER.glob("crds/*.yaml"))
    texts = [p.read_text() for p in paths if p.name != "kustomization.yaml"]
    return "\n---\n".join(texts)


def manifests():
    paths = sorted(FOLDER.glob("manifests/base/*.yaml"))
    texts = [p.read_text() for p in paths if p.name != "kustomization.yaml"]
    return of_the_double(one for text in texts for one in yaml.safe_load_all(text))


def of_the_double(items):
    """Returns the objects of kinds that the double has: nothing runs an operator there."""
    others = {"Deployment", "PodDisruptionBudget"}
    return [one for one in items if one["kind"] not in others]


def account(cluster):
    """Returns the access of the operator's own account, which may do nothing else."""
    return cluster.kubeconfig_for("drivetrain-system", "drivetrain-operator")


def elastic_job(name="job", replicas=2, cpu="1", **spec):
    container = {
        "name": "worker",
        "image": "trainer",
        "command": ["true"],
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "apiVersion": "drivetrain.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"containers": [container]}},
            **spec,
        },
    }


def no_connection(job, secret):
    """Returns none: for pods that have no master, as simulated ones."""


class RunningOperator:
    """An operator in a thread of its own, which can be killed at any moment."""

    def __init__(
        self,
        kubeconfig,
        *,
        connect=no_connection,
        client=ApiClient,
        make=Operator,
        **options,
    ):
        self._access = ClusterAccess(kubeconfig)
        self._client = client
        self._make = make
        self._options = {"connect": connect, "pool_s": 0.1, "poll_s": 0.1, **options}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = threading.Event()
        self.error = None
        self.operator = None

    def _run(self):
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:  # noqa: BLE001
            self.error = error
        finally:
            # Connections that were closed last are let go of in one more turn.
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _main(self):
        self._task = asyncio.current_task()
        self._begun.set()
        async with self._client(self._access) as client:
            self.operator = self._make(client, **self._options)
            with contextlib.suppress(asyncio.CancelledError):
                await self.operator.run()

    def start(self):
        self._thread.start()
        self._begun.wait()  # until then there is nothing to stop
        return self

    def stop(self):
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def __enter__(self):
        return self.start()

    def __exit__(self, *args):
        self.stop()


def pods_of(cluster, job="job", role="worker"):
    labels = f"drivetrain.dev/job={job},drivetrain.dev/role={role}"
    return sorted(
        cluster.list("Pod", selector=labels), key=lambda pod: pod["metadata"]["name"]
    )


def names(pods):
    return [pod["metadata"]["name"] for pod in pods]


def status(cluster, job="job"):
    item = cluster.get("ElasticJob", job)
    return (item or {}).get("status", {})


def live(pods):
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and pod["status"]["phase"] in {"Pending", "Running"}
    ]


class FakeTraining:
    """Stands for the masters of all jobs: every pod that is ready can train."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.admitted, self.saved, self.left, self.stopped = None, None, [], []
        self.history = []
        self.is_down = False

    def __call__(self, job, secret):
        self.job, self.secret, self.control = job["metadata"]["name"], secret, self
        return self

    def close(self):
        pass

    def look(self):
        if self.is_down:
            message = "nobody answers"
            raise MasterError(message)
        ready = {
            pod["metadata"]["name"]
            for pod in live(pods_of(self.cluster, self.job))
            if pod["status"]["phase"] == "Running"
        } - set(self.left)
        training = ready if self.admitted is None else ready & self.admitted
        return JobView(
            present=frozenset(ready),
            ready=frozenset(ready),
            training=frozenset(training),
            step=7,
            step_s=0.05,
            admitted=self.admitted,
            saved=self.saved,
            requested=self.saved.request if self.saved else "",
        )

    def admit(self, nodes, reason):
        self.admitted = frozenset(nodes)
        self.history.append(("admit", tuple(sorted(nodes))))

    def save(self, request, within_s, reason):
        self.saved = SaveResult(request, 7, "")
        self.history.append(("save", request))

    def leave(self, node, within_s, reason):
        self.history.append(("leave", node))
        self.left.append(node)
        self.cluster.finish(node, "default", exit_code=0)

    def stop(self, reason, exit_code):
        self.stopped.append(reason)
