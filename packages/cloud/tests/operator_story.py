"""The life of a job on a cluster, while its operator is killed or refused at some call."""

from __future__ import annotations

import asyncio
import copy
import threading

from drivetrain_cluster_double import ClusterDouble, Fault
from operator_samples import (
    FakeTraining,
    account,
    definitions,
    elastic_job,
    live,
    manifests,
    names,
    pods_of,
    status,
)

from drivetrain_cloud.kubernetes.api_client import ApiClient
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.operator import Operator


class KilledError(BaseException):
    """Ends an operator at once: nothing catches it."""


def story_cluster():
    """Returns a cluster for stories; it must be entered."""
    return ClusterDouble(nodes=4, run="simulated", is_secure=False)


def prepare(cluster):
    """Gives a cluster the kinds, and the operator its account."""
    cluster.apply(definitions())
    cluster.apply(manifests())


class KilledAt:
    """Says before or after which call an operator is killed; once.

    A call that is refused has no after: the next one that is answered has.
    """

    def __init__(self, number=-1, when="before"):
        self.number, self.when = number, when
        self.num_calls = self.num_kills = 0
        self.killed_at = ""

    def count(self):
        self.num_calls += 1
        return self.num_calls - 1

    def check(self, number, when, what):
        if number >= self.number >= 0 == self.num_kills and when == self.when:
            self.num_kills += 1
            self.killed_at = f"{when} {what}"
            raise KilledError


class FaultAt:
    """Lets one call of the operator go wrong, and counts all of them."""

    def __init__(self, number=-1, options=None):
        self.number, self.options = number, options
        self.num_calls = self.num_faults = 0
        self.lock = threading.Lock()

    def __call__(self, call):
        if not call.user_agent.startswith("drivetrain-operator"):
            return None
        with self.lock:
            at, self.num_calls = self.num_calls, self.num_calls + 1
            if at != self.number:
                return None
            self.num_faults += 1
        options = dict(self.options)
        if call.verb == "watch" and options.get("drop"):
            options = {"drop": True, "after_events": 1}
        return Fault(retry_after_s=0, **options)


class MortalClient(ApiClient):
    """A client whose operator is killed at a call."""

    kill = None

    async def call(self, method, path, **options):
        number, what = self.kill.count(), f"{method} {path}"
        self.kill.check(number, "before", what)
        reply = await super().call(method, path, **options)
        self.kill.check(number, "after", what)
        return reply

    async def watch(self, kind, version, **options):
        number, what = self.kill.count(), f"WATCH {kind}"
        self.kill.check(number, "before", what)
        async for event in super().watch(kind, version, **options):
            yield event
            self.kill.check(number, "after", what)


class OperatorThread:
    """A thread with an event loop of operators: `main`, which sets `begun`."""

    def __init__(self):
        self.error, self.begun = None, threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        self.begun.wait()
        return self

    def run(self):
        try:
            self.loop.run_until_complete(self.main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001
            self.error = error
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


class Lineage(OperatorThread):
    """Operators, one after the other: when one is killed, the next one begins."""

    def __init__(self, cluster, connect, kill):
        super().__init__()
        self.access = ClusterAccess(account(cluster))
        self.connect, self.kill = connect, kill
        self.num_operators, self.is_over = 0, False

    async def main(self):
        self.task = asyncio.current_task()
        self.begun.set()
        while not self.is_over:
            self.num_operators += 1
            client = MortalClient(self.access)
            client.kill = self.kill
            async with client:
                operator = Operator(
                    client, connect=self.connect, pool_s=0.1, poll_s=0.1
                )
                try:
                    await operator.run()
                except BaseExceptionGroup as group:
                    if group.split(KilledError)[1] is not None:
                        raise

    def __exit__(self, *_):
        # One that dies at this moment takes no notice that it is cancelled.
        self.is_over = True
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(60)
        assert not self.thread.is_alive()


def live_story(cluster, name, kill=None):
    """Lives a job's life, from its creation to its deletion; returns its lineage.

    Raises:
        TimeoutError: The cluster did not become what was wanted.
        AssertionError: It has become something else.
    """
    kill = kill or KilledAt()
    with Lineage(cluster, FakeTraining(cluster), kill) as lineage:
        spec = elastic_job(name, replicas=2)
        evaluator = copy.deepcopy(spec["spec"]["template"])
        spec["spec"]["roles"] = [
            {"name": "evaluator", "replicas": 1, "template": evaluator}
        ]

        def become(number, failures=0):
            def holds():
                workers = pods_of(cluster, name)
                there = names(workers) == names(live(workers))
                told = status(cluster, name)
                return (
                    there
                    and len(workers) == number
                    and told.get("phase") == "Running"
                    and told["readyReplicas"] == number
                    and told["failures"] == failures
                    and not told["countedPods"]
                    and len(live(pods_of(cluster, name, "evaluator"))) == 1
                    and len(live(pods_of(cluster, name, "master"))) == 1
                )

            try:
                cluster.wait_for(holds, 60)
            except TimeoutError as error:
                message = (
                    f"{number} workers did not come: {told_of(cluster, name)}, "
                    f"{lineage.num_operators} operators, {lineage.error!r}"
                )
                raise TimeoutError(message) from error

        cluster.apply(spec)
        become(2)
        spec["spec"]["replicas"] = 3
        cluster.apply(spec)
        become(3)
        cluster.kill(names(pods_of(cluster, name))[0])
        become(3, failures=1)
        spec["spec"]["replicas"] = 2
        cluster.apply(spec)
        become(2, failures=1)
        # Of four that were made, no number was given twice.
        assert status(cluster, name)["lastPodNumber"] == 3
        cluster.delete("ElasticJob", name)
        cluster.wait_for(lambda: not leaked(cluster, name), 60)
    return lineage


def live_spot_story(cluster, name, kill=None):
    """Has a node of a spot job taken back, while another one is there; as above."""
    kill = kill or KilledAt()
    training = FakeTraining(cluster)
    pool = {"pool": name}
    for number in range(3):
        cluster.add_node(f"{name}-{number}", cpu="1", labels=pool)
    spot = {"enabled": True, "settleSeconds": 0, "growAfterSeconds": 0}
    spec = elastic_job(name, replicas=2, minReplicas=1, spot=spot)
    template = spec["spec"]["template"]["spec"]
    template["nodeSelector"] = pool
    template["terminationGracePeriodSeconds"] = 1
    # On a node that is not taken away.
    spec["spec"]["master"] = {"template": elastic_job(cpu="2")["spec"]["template"]}
    with Lineage(cluster, training, kill) as lineage:
        cluster.apply(spec)

        def trains(*numbers):
            wanted = {f"{name}-worker-{number}" for number in numbers}
            cluster.wait_for(
                lambda: (
                    training.admitted == wanted
                    and set(names(pods_of(cluster, name))) == wanted
                    and status(cluster, name).get("phase") == "Running"
                ),
                60,
            )

        trains(0, 1)
        victim = pods_of(cluster, name)[0]["spec"]["nodeName"]
        # Long enough for an operator that starts anew on a busy machine.
        cluster.reclaim(victim, notice_s=5)
        try:
            trains(1, 2)
        except TimeoutError as error:
            message = f"{told_of(cluster, name)}, {training.history}, {lineage.error!r}"
            raise TimeoutError(message) from error
        assert status(cluster, name)["failures"] == 0
        assert ("leave", f"{name}-worker-0") in training.history
        cluster.delete("ElasticJob", name)
        cluster.wait_for(lambda: not leaked(cluster, name), 60)
    for node in cluster.list("Node"):
        if node["metadata"]["name"].startswith(f"{name}-"):
            cluster.remove_node(node["metadata"]["name"])
    return lineage


def told_of(cluster, name):
    """Returns what there is, for people."""
    pods = [
        (
            one["metadata"]["name"],
            one["status"]["phase"],
            one["metadata"].get("annotations"),
            one["metadata"].get("deletionTimestamp"),
        )
        for one in cluster.list("Pod", selector=f"drivetrain.dev/job={name}")
    ]
    told = status(cluster, name)
    kept = ("phase", "replicas", "readyReplicas", "failures", "countedPods")
    return pods, {key: told.get(key) for key in kept}


def leaked(cluster, name):
    """Returns what a job has left behind."""
    return [
        f"{kind} {one['metadata']['name']}"
        for kind in ("ElasticJob", "Pod", "Service", "Secret")
        for one in cluster.list(kind)
        if one["metadata"]["name"] == name
        or one["metadata"]["name"].startswith(f"{name}-")
    ]
