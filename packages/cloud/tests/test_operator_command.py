"""The command that is the operator: what it writes, refuses, and who of two leads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial

import pytest
import yaml

from drivetrain_cloud.cli import main
from drivetrain_cloud.kubernetes import agent
from drivetrain_testing import check_wrong_use, exit_status

ending = partial(exit_status, main)
wrong_use = partial(check_wrong_use, "drivetrain-cloud")


def test_definitions_and_manifests_need_no_library():
    program = (
        "import sys\n"
        "from drivetrain_cloud.cli import main\n"
        "assert main(['operator', '--definitions', '--manifests']) == 0\n"
        "left = {'aiohttp', 'yaml', 'cryptography'} & set(sys.modules)\n"
        "assert not left, left\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert kinds.count("CustomResourceDefinition") >= 1
    assert {"Namespace", "ServiceAccount", "ClusterRole", "Deployment"} <= set(kinds)
    assert "Kustomization" not in kinds


def test_help_of_the_agent_is_that_of_run_in_no_pod(capsys):
    with pytest.raises(SystemExit) as ended:
        agent.main(["--help"])
    assert ended.value.code == 0
    assert "--nproc-per-node" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(
            ["--kubeconfig", "nowhere"],
            "no kubeconfig at nowhere",
            marks=pytest.mark.extra,
        ),
    ],
)
def test_what_makes_no_sense_is_said(capsys, options, words):
    assert main(["operator", *options]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_number_out_of_range_is_wrong_use(capsys):
    status = ending(["operator", "--parallel", "0"])
    wrong_use(status, *capsys.readouterr(), "--parallel: must be at least 1, got 0")


@pytest.mark.extra
def test_no_cluster_is_said(capsys, monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["operator"]) == 1
    assert "there is no cluster to call" in capsys.readouterr().err


# ---- who leads ----


@pytest.fixture(scope="module")
def cluster():
    from drivetrain_cluster_double import ClusterDouble
    from operator_samples import definitions, manifests

    with ClusterDouble(nodes=1, run="simulated") as double:
        double.apply(definitions())
        double.apply(manifests())
        yield double


class Candidate:
    """An operator that takes part in an election, with a lease that is short."""

    def __init__(self, cluster, name, **times):
        from operator_samples import account

        self.file, self.name = account(cluster), name
        self.times = {"lease_s": 2.0, "renew_by_s": 1.4, "retry_s": 0.1, **times}
        self.leads, self.code = threading.Event(), None
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main()))
        self.thread.start()

    async def main(self):
        from operator_samples import no_connection

        from drivetrain_cloud.kubernetes.api_client import ApiClient
        from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
        from drivetrain_cloud.kubernetes.leader_election import LeaderElection
        from drivetrain_cloud.kubernetes.operator import Operator
        from drivetrain_cloud.kubernetes.serve import serve

        self.loop, self.ending = asyncio.get_running_loop(), asyncio.Event()
        agent = f"candidate-{self.name}"
        async with ApiClient(ClusterAccess(self.file), user_agent=agent) as client:
            election = LeaderElection(
                client, namespace="drivetrain-system", identity=self.name, **self.times
            )

            async def work():
                self.leads.set()
                await Operator(client, connect=no_connection, pool_s=0.1).run()

            self.task = asyncio.current_task()
            try:
                self.code = await serve(work, election, self.ending)
            except asyncio.CancelledError:
                self.code = "killed"

    def end(self):
        self.loop.call_soon_threadsafe(self.ending.set)
        self.thread.join(60)

    def kill(self):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(60)


@pytest.mark.slow
@pytest.mark.extra
def test_second_operator_takes_over_when_the_first_is_killed_or_ended(cluster):
    from operator_samples import elastic_job, live, pods_of

    first = Candidate(cluster, "first")
    assert first.leads.wait(60)
    second = Candidate(cluster, "second")
    cluster.apply(elastic_job(replicas=1))
    cluster.wait_for(lambda: len(live(pods_of(cluster))) == 1)
    assert not second.leads.is_set()
    first.kill()
    assert second.leads.wait(60)
    job = elastic_job(replicas=2)
    cluster.apply(job)
    cluster.wait_for(lambda: len(live(pods_of(cluster))) == 2)
    # One that ends by itself is not waited for.
    third = Candidate(cluster, "third", lease_s=600.0, renew_by_s=500.0)
    second.end()
    assert second.code == 0
    assert third.leads.wait(60)
    lease = cluster.get("Lease", "drivetrain-operator", "drivetrain-system")
    assert lease["spec"]["holderIdentity"] == "third"
    assert lease["spec"]["leaseTransitions"] == 2
    cluster.delete("ElasticJob", "job")
    cluster.wait_for(lambda: not cluster.list("ElasticJob"))
    third.end()


@pytest.mark.slow
@pytest.mark.extra
def test_leader_that_cannot_renew_ends_itself_first(cluster):
    from drivetrain_cluster_double import Fault

    first = Candidate(cluster, "first")
    assert first.leads.wait(60)
    for verb in ("get", "update"):
        cluster.faults.add(
            Fault(
                verb=verb,
                resource="leases",
                user_agent="candidate-first",
                status=500,
                times=10_000,
            )
        )
    second = Candidate(cluster, "second")
    first.thread.join(60)
    assert first.code == 1
    assert second.leads.wait(60)
    cluster.faults.clear()
    second.end()


@pytest.mark.extra
@pytest.mark.parametrize("times", [(1, 2, 3), (15, 10, 12), (15, 15, 2), (15, 10, 0)])
def test_times_with_which_two_could_lead_are_refused(times):
    from drivetrain_cloud.kubernetes.leader_election import LeaderElection
    from drivetrain_core import ProgramError

    lease_s, renew_by_s, retry_s = times
    with pytest.raises(ProgramError, match="retry_s < renew_by_s < lease_s"):
        LeaderElection(
            None,
            namespace="n",
            identity="i",
            lease_s=lease_s,
            renew_by_s=renew_by_s,
            retry_s=retry_s,
        )


@pytest.mark.slow
@pytest.mark.extra
def test_command_runs_an_operator_and_ends_with_a_signal(cluster):
    from operator_samples import account, elastic_job, live, pods_of

    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "drivetrain_core.cli",
            "cloud",
            "operator",
            "--leader-election",
        ],
        env={
            **os.environ,
            "KUBECONFIG": str(account(cluster)),
            "POD_NAMESPACE": "drivetrain-system",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        cluster.apply(elastic_job(replicas=1))
        cluster.wait_for(lambda: len(live(pods_of(cluster))) == 1)
        process.terminate()
        assert process.wait(60) == 0, process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    lease = cluster.get("Lease", "drivetrain-operator", "drivetrain-system")
    assert not lease["spec"]["holderIdentity"]
