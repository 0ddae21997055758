"""How many jobs an operator keeps as they are wanted, and how soon it sees a loss.

The cluster is the double of `drivetrain_cluster_double` with simulated pods;
the operator is a process of its own, calls it with TLS, and has its own account only.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from drivetrain_cluster_double import ClusterDouble
from operator_samples import (
    account,
    definitions,
    elastic_job,
    live,
    manifests,
    pods_of,
    status,
)

from drivetrain_testing import Bar, Row, run_bars

_PODS, _MOST_S, _REACTION_S = 8, 60.0, 1.0
_PROGRAM = """
import asyncio, sys
from drivetrain_cloud.kubernetes.api_client import ApiClient
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.operator import Operator

async def main():
    async with ApiClient(ClusterAccess(sys.argv[1])) as client:
        await Operator(client, connect=lambda *_: None).run()

asyncio.run(main())
"""


@contextlib.contextmanager
def cluster_with_operator(num_nodes, **shape):
    """Yields a cluster, and the process that is its operator."""
    with ClusterDouble(nodes=0, run="simulated") as cluster:
        cluster.apply(definitions())
        cluster.apply(manifests())
        for _ in range(num_nodes):
            cluster.add_node(**shape)
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, account(cluster)],
            stderr=subprocess.DEVNULL,
        )
        try:
            cluster.wait_for(lambda: cluster.calls["watch", "pods"])
            yield cluster, process
        finally:
            process.kill()
            process.wait()


def used(process):
    """Returns the largest memory of a process in MB, and its processor time in s."""
    folder = Path("/proc", str(process.pid))
    lines = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines()
    )
    ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    most_mb = int(lines["VmHWM"].split()[0]) / 1000
    return most_mb, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def scale(quick):
    """Measures how long it takes until all of many jobs run, and what that costs."""
    num_jobs = 100 if quick else 1000
    with cluster_with_operator(100, cpu="120", pods=1000) as (cluster, process):
        ready, changed = set(), threading.Event()

        def note(change):
            if change.table[1] != "elasticjobs":
                return
            told = change.after.item.get("status") or {}
            if told.get("phase") == "Running" and told["readyReplicas"] == _PODS:
                ready.add(change.key.name)
                if len(ready) == num_jobs:
                    changed.set()

        unsubscribe = cluster.api.store.subscribe(note)
        began_s = time.monotonic()
        for number in range(num_jobs):
            cluster.apply(elastic_job(f"j{number}", replicas=_PODS))
        applied_s = time.monotonic() - began_s
        holds = changed.wait(10 * _MOST_S)
        took_s = time.monotonic() - began_s
        unsubscribe()
        most_mb, busy_s = used(process)
        calls = sum(cluster.calls.values())
        pods = len(cluster.list("Pod"))
    figure = (
        f"{len(ready)} jobs of {_PODS} workers ({pods} pods) run {took_s:.1f} s after "
        f"the first was made; the operator: {busy_s:.1f} s of a core, {most_mb:.0f} MB"
    )
    return Row(
        figure=figure,
        holds=holds and took_s <= _MOST_S,
        proven_on="simulation",
        details={
            "jobs": num_jobs,
            "pods": pods,
            "calls": calls,
            "making_jobs_s": applied_s,
            "took_s": took_s,
            "operator_s": busy_s,
            "operator_mb": most_mb,
        },
    )


def reaction(quick):
    """Measures the time from the loss of a pod to the creation of the next one."""
    num_jobs, num_losses = (10, 40) if quick else (50, 400)
    with cluster_with_operator(10, cpu="120", pods=1000) as (cluster, _):
        names = [f"j{number}" for number in range(num_jobs)]
        cluster.apply(elastic_job(name, replicas=_PODS) for name in names)
        runs = lambda name: (
            status(cluster, name).get("phase") == "Running"
            and status(cluster, name)["readyReplicas"] == _PODS
        )
        cluster.wait_for(lambda: all(map(runs, names)), 120)
        times_s = []
        for number in range(num_losses):
            name = names[number % num_jobs]
            cluster.wait_for(lambda name=name: len(running(cluster, name)) == _PODS)
            before = {one["metadata"]["uid"] for one in pods_of(cluster, name)}
            made = threading.Event()

            def note(change, name=name, before=before, made=made):
                if change.table != ("", "pods"):
                    return
                data = change.after.item["metadata"]
                labels = data.get("labels") or {}
                is_new = data["uid"] not in before
                if is_new and labels.get("drivetrain.dev/job") == name:
                    made.set()

            unsubscribe = cluster.api.store.subscribe(note)
            victim = running(cluster, name)[0]["metadata"]["name"]
            began_s = time.monotonic()
            # The first time as a failure, which is later made to wait.
            if number < num_jobs:
                cluster.kill(victim)
            else:
                cluster.delete("Pod", victim)
            if not made.wait(30):
                return Row(figure=f"{victim} was not replaced in 30 s", holds=False)
            times_s.append(time.monotonic() - began_s)
            unsubscribe()
    times_s.sort()
    half_s, most_s = times_s[len(times_s) // 2], times_s[int(0.99 * len(times_s))]
    figure = (
        f"{len(times_s)} losses: p50 {1e3 * half_s:.0f} ms, p99 {1e3 * most_s:.0f} ms"
    )
    return Row(
        figure=figure,
        holds=most_s <= _REACTION_S,
        proven_on="simulation",
        details={"p50_s": half_s, "p99_s": most_s, "losses": len(times_s)},
    )


def running(cluster, name):
    """Returns the workers of a job that run."""
    return [
        one
        for one in live(pods_of(cluster, name))
        if one["status"]["phase"] == "Running"
    ]


if __name__ == "__main__":
    sys.exit(
        run_bars(
            [
                Bar(
                    name="operator-scale",
                    bound="1,000 jobs of 8 pods <= 60 s",
                    measure=scale,
                ),
                Bar(
                    name="operator-reaction",
                    bound="p99 <= 1 s from a loss to the next pod",
                    measure=reaction,
                ),
            ],
            description=__doc__,
        )
    )
