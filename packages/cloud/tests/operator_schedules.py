"""Random lives of jobs, while two operators die, nodes are lost, and calls are refused."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

from drivetrain_cluster_double import Fault
from drivetrain_cluster_double.errors import StatusError
from operator_samples import (
    account,
    elastic_job,
    live,
    names,
    no_connection,
    pods_of,
    status,
)
from operator_story import KilledError, MortalClient, OperatorThread, leaked, told_of

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.leader_election import LeaderElection
from drivetrain_cloud.kubernetes.operator import Operator
from drivetrain_cloud.kubernetes.serve import serve

_PATIENCE_S = 60.0
_LEASE = {"lease_s": 1.5, "renew_by_s": 1.0, "retry_s": 0.1}


class RandomDeath:
    """Says at which calls an operator dies: one of so many, before or after it."""

    def __init__(self, dice, one_of):
        self.dice, self.one_of, self.num_deaths = dice, one_of, 0

    def count(self):
        return 0

    def check(self, number, when, what):
        if self.dice.random() < 0.5 / self.one_of:
            self.num_deaths += 1
            raise KilledError


class WatchedClient(MortalClient):
    """A client of one of two operators, which tells what it writes while another leads."""

    operators, name = None, ""

    async def _call(self, method, path, *rest):
        is_write = method != "GET" and "/leases" not in path
        if is_write and self.lead_s() > 0 and self.operators.leader != self.name:
            self.operators.strange_writes.append(f"{self.name}: {method} {path}")
        return await super()._call(method, path, *rest)


class TwoOperators(OperatorThread):
    """Two operators of which one leads; whichever dies at a call begins anew.

    Args:
        cluster: Where.
        dice: Of their deaths.
        one_of: They die at one of so many calls.
    """

    def __init__(self, cluster, dice, one_of):
        super().__init__()
        self.access = account(cluster)
        self.death = RandomDeath(dice, one_of)
        self.leader, self.strange_writes = "", []

    async def main(self):
        self.ending = asyncio.Event()
        self.begun.set()
        await asyncio.gather(*(self.operate(f"operator-{n}") for n in range(2)))

    async def operate(self, name):
        while not self.ending.is_set():
            with contextlib.suppress(ApiError):
                await self.live(name)

    async def live(self, name):
        client = WatchedClient(ClusterAccess(self.access))
        client.kill = self.death
        client.operators, client.name = self, name
        async with client:
            election = LeaderElection(
                client, namespace="drivetrain-system", identity=name, **_LEASE
            )
            client.lead_s = election.left_s

            async def work():
                self.leader = name
                options = {"connect": no_connection, "pool_s": 0.1, "poll_s": 0.1}
                await Operator(client, **options).run()

            try:
                await serve(work, election, self.ending)
            except KilledError:
                pass
            except BaseExceptionGroup as group:
                if group.split(KilledError)[1] is not None:
                    raise

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.ending.set)
        self.thread.join(_PATIENCE_S)
        assert not self.thread.is_alive()


class Schedule:
    """The life of one job, in which things happen at random.

    Args:
        cluster: Where.
        name: Of the job.
        seed: Of what happens.
        calm: Held while no node may be lost.
    """

    def __init__(self, cluster, name, seed, calm):
        self.cluster, self.name, self.calm = cluster, name, calm
        self.dice = random.Random(seed)
        self.replicas = self.dice.randint(1, 3)
        self.backoff = self.dice.choice([0, 1, 6])
        self.clean = self.dice.choice(["All", "Running", "None"])
        self.failures, self.is_suspended = 0, False
        self.happened = []

    def spec(self):
        policy = {"backoffLimit": self.backoff, "cleanPodPolicy": self.clean}
        return elastic_job(
            self.name,
            replicas=self.replicas,
            cpu="10m",
            minReplicas=1,
            suspend=self.is_suspended,
            runPolicy=policy,
        )

    def workers(self):
        return live(pods_of(self.cluster, self.name))

    def one_worker(self):
        """Returns one of the workers, if there is any at this moment, in a list."""
        here = self.workers()
        return self.dice.sample(here, min(1, len(here)))

    def wait_for(self, condition, what):
        try:
            self.cluster.wait_for(condition, _PATIENCE_S)
        except TimeoutError as error:
            told = told_of(self.cluster, self.name)
            message = f"{self.name}: {what} after {self.happened}: {told}"
            raise AssertionError(message) from error

    def is_settled(self):
        """Whether there is what is asked for, and the status says just that."""
        told, here = status(self.cluster, self.name), self.workers()
        if self.has_failed():
            return told.get("phase") == "Failed"
        if self.is_suspended:
            return told.get("phase") == "Suspended" and not here
        ready = [pod for pod in here if pod["status"]["phase"] == "Running"]
        return (
            len(ready) == len(here) == self.replicas
            and told.get("phase") == "Running"
            and told["readyReplicas"] == told["replicas"] == self.replicas
            and told["failures"] == self.failures
            and len(live(pods_of(self.cluster, self.name, "master"))) == 1
        )

    def has_failed(self):
        return self.failures > self.backoff

    # ---- what happens ----

    def delete(self, kind, name):
        # It may go by itself in this moment, as a pod does whose node is lost.
        with contextlib.suppress(StatusError):
            self.cluster.delete(kind, name)

    def fail_a_worker(self):
        # A pod that goes with its node before anybody has seen it has not failed.
        with self.calm:
            for pod in self.one_worker():
                self.cluster.finish(pod["metadata"]["name"], exit_code=1)
                self.failures += 1
            told = lambda: status(self.cluster, self.name).get("failures", 0)
            self.wait_for(lambda: told() >= self.failures, "it was not counted")

    def delete_a_worker(self):
        for pod in self.one_worker():
            self.delete("Pod", pod["metadata"]["name"])

    def delete_the_master(self):
        for pod in live(pods_of(self.cluster, self.name, "master")):
            self.delete("Pod", pod["metadata"]["name"])

    def delete_the_service(self):
        self.delete("Service", f"{self.name}-master")

    def scale(self):
        self.replicas = self.dice.randint(1, 3)
        self.cluster.apply(self.spec())

    def suspend(self):
        self.is_suspended = True
        self.cluster.apply(self.spec())
        self.settle("suspended")
        self.is_suspended = False
        self.cluster.apply(self.spec())

    def use_up_the_quota(self):
        times = self.dice.randint(1, 4)
        fault = {"verb": "create", "resource": "pods", "status": 403, "times": times}
        self.cluster.faults.add(Fault(**fault))
        self.delete_a_worker()

    def refuse_calls(self):
        code = self.dice.choice([409, 410, 429, 500, 503])
        when = self.dice.choice(["before", "after"])
        fault = {"status": code, "when": when, "times": 2, "retry_after_s": 0}
        self.cluster.faults.add(Fault(user_agent="drivetrain-operator", **fault))
        self.delete_a_worker()

    def settle(self, what):
        self.wait_for(self.is_settled, what)

    def run(self):
        """Lives the life; raises an AssertionError if it ends otherwise than it should."""
        kinds = (
            *(self.fail_a_worker, self.delete_a_worker, self.delete_the_master),
            *(self.scale, self.suspend, self.use_up_the_quota, self.refuse_calls),
            self.delete_the_service,
        )
        self.cluster.apply(self.spec())
        self.settle("it did not begin")
        for _ in range(self.dice.randint(2, 5)):
            kind = self.dice.choice(kinds)
            self.happened.append(kind.__name__)
            kind()
            self.settle("it did not settle")
            if self.has_failed():
                break
        else:
            self.happened.append("finish")
            # A worker that goes with its node is replaced, even if it has just ended.
            with self.calm:
                self.settle("it did not settle")
                for pod in self.workers():
                    self.cluster.finish(pod["metadata"]["name"], exit_code=0)
                is_over = lambda: self.phase() == "Succeeded"
                self.wait_for(is_over, "it has not succeeded")
        self.wait_for(self.is_clean, f"cleanPodPolicy {self.clean}")
        assert status(self.cluster, self.name)["failures"] == self.failures
        self.cluster.delete("ElasticJob", self.name)
        self.wait_for(lambda: not leaked(self.cluster, self.name), "something is left")

    def phase(self):
        return status(self.cluster, self.name).get("phase")

    def is_clean(self):
        pods = self.cluster.list("Pod", selector=f"drivetrain.dev/job={self.name}")
        phases = {pod["status"]["phase"] for pod in pods}
        if self.clean == "All":
            return not pods
        return self.clean == "None" or phases <= {"Succeeded", "Failed"}


def lose_nodes(cluster, dice, is_over, calm):
    """Lets a node be lost, and another one come, now and then."""
    number = 0
    while not is_over.wait(dice.uniform(1.0, 3.0)):
        number += 1
        node = dice.choice(names(cluster.list("Node")))
        cluster.add_node(f"again-{number}")
        with calm, contextlib.suppress(KeyError):
            cluster.remove_node(node)


def live_schedules(cluster, seeds, *, num_threads=8, one_of=60):
    """Lives the lives of many jobs, some at a time; returns what went wrong, and deaths.

    Args:
        cluster: Where; it is prepared.
        seeds: Of the schedules, one for each.
        num_threads: How many live at a time.
        one_of: Operators die at one of so many calls.
    """
    left, problems, lock = list(seeds)[::-1], [], threading.Lock()
    is_over, calm = threading.Event(), threading.Lock()

    def work():
        while True:
            with lock:
                if not left:
                    return
                seed = left.pop()
            try:
                Schedule(cluster, f"j{seed}", seed, calm).run()
            except Exception as error:  # noqa: BLE001
                with lock:
                    problems.append(f"seed {seed}: {error!r}")

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    dice = random.Random(len(left))
    nodes = threading.Thread(target=lose_nodes, args=(cluster, dice, is_over, calm))
    with TwoOperators(cluster, random.Random(7), one_of) as operators:
        nodes.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        is_over.set()
        nodes.join()
    if operators.error is not None:
        problems.append(f"the operators: {operators.error!r}")
    problems += operators.strange_writes
    return problems, operators.death.num_deaths
