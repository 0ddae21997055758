"""Jobs of several nodes, each an agent of its own: they die, leave, come and are cut off."""

import argparse
import shutil
import signal
import subprocess
import time
from functools import partial

import psutil
import pytest

from drivetrain_elastic import Master
from drivetrain_elastic._client._token import write_token
from drivetrain_elastic._commands._run import require_arguments
from drivetrain_elastic._commands._run_agent import agent_of
from drivetrain_elastic._commands._run_options import populate_run_parser
from drivetrain_elastic.cli import main
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.testing import LocalJob, members_of
from drivetrain_health import faults
from drivetrain_testing import check_wrong_use, exit_status

ending = partial(exit_status, main)
wrong_use = partial(check_wrong_use, "drivetrain-elastic")

ENDLESS = ["--steps", "1000000", "--pause-s", "0.02"]
STEPS = ["--steps", "100", "--dtype", "float64", "--pause-s", "0.02"]


@pytest.fixture
def job(tmp_path):
    """Makes a job whose nodes the test starts."""
    jobs = []

    def make(*options, nnodes="1:2", arguments=STEPS, **more):
        options = ["--nproc-per-node", "1", "--nnodes", nnodes, *options]
        jobs.append(LocalJob(tmp_path, options=options, arguments=arguments, **more))
        return jobs[-1]

    yield make
    for one in jobs:
        one.close()


def whole(num):
    return lambda status: status.world_size == num and len(members_of(status)) == num


def steps_are_whole(job, num_steps=100):
    assert sorted(job.losses()) == list(range(1, num_steps + 1))


def each_step_is_made(job):
    numbers = {one["step"] for one in job.steps()}
    assert numbers == set(range(1, max(numbers) + 1))


@pytest.mark.faults
def test_node_leaves_with_a_signal_and_another_one_comes(job):
    job = job(arguments=ENDLESS)
    job.start_node()
    leaver = job.start_node()
    job.wait_for_step(5, num_workers=2)
    leaver.send_signal(signal.SIGTERM)
    job.wait_for(whole(1))
    assert leaver.wait(60) == 0
    job.start_node()
    (member, _) = members_of(job.wait_for(whole(2)))
    job.wait_for_step(member.step + 3, num_workers=2)
    job.call("Stop", pb.StopRequest(reason="it has been seen"))
    assert job.wait() == {"node0": 0, "node1": 0, "node2": 0}, job.text()
    each_step_is_made(job)
    assert "the agent got SIGTERM" in job.text()


@pytest.mark.faults
def test_only_node_leaves_when_another_one_has_the_state(job, tmp_path):
    job = job("--standbys", "0", arguments=ENDLESS, keeps_master=False)
    with Master(tmp_path / "job.db", address=job.address, token=job.token):
        leaver = job.start_node()
        job.wait_for_step(5)
        job.start_node()
        job.wait_for(lambda status: len(status.nodes) == 2)
        # The one that comes is still starting.
        leave = pb.LeaveRequest(node="node0", within_s=60.0, reason="it is wanted")
        job.call("Leave", leave)
        assert leaver.wait(60) == 0, job.text()
        left = job.steps()
        job.wait_for_step(left[-1]["step"] + 3)
        job.call("Stop", pb.StopRequest(reason="it has been seen"))
        assert job.wait()["node1"] == 0, job.text()
    both = [one for one in left if one["epoch"] == 2]
    assert len({one["pid"] for one in both}) == 2
    each_step_is_made(job)
    assert min(one["step"] for one in both) > 5
    assert "leaving when another one has the state" in job.text()


@pytest.mark.faults
def test_node_with_the_master_leaves_and_its_agent_stays(job):
    job = job("--standbys", "0", arguments=ENDLESS)
    keeper = job.start_node()
    job.wait_for_step(3)
    job.start_node()
    job.wait_for_step(6, num_workers=2)
    job.call(
        "Leave", pb.LeaveRequest(node="node0", within_s=60.0, reason="it is wanted")
    )
    (member,) = members_of(job.wait_for(whole(1)))
    job.wait_for_step(member.step + 3)
    assert keeper.poll() is None
    job.call("Stop", pb.StopRequest(reason="it has been seen"))
    assert job.wait() == {"node0": 0, "node1": 0}, job.text()
    each_step_is_made(job)
    assert "the agent stays to the end of the job" in job.text()
    assert f"the master of this job: --address {job.address}" in job.text()


@pytest.mark.faults
def test_node_that_dies_is_missed_after_the_time_out(job):
    job = job()
    job.start_node()
    victim = psutil.Process(job.start_node().pid)
    job.wait_for_step(5, num_workers=2)
    for one in [victim, *victim.children(recursive=True)]:
        one.kill()
    job.wait_for(whole(1))
    (lost,) = [one for one in job.events() if one.kind == "node-lost"]
    assert (lost.subject, lost.reason[:16]) == ("node1", "not heard of for")
    assert job.wait()["node0"] == 0, job.text()
    steps_are_whole(job)


@pytest.mark.faults
def test_node_beyond_the_most_stands_by_and_takes_a_place(job):
    job = job(nnodes="2")
    job.start_node()
    second = psutil.Process(job.start_node().pid)
    job.wait_for_step(3, num_workers=2)
    job.start_node()
    job.wait_for(lambda status: len(status.nodes) == 3)
    status = job.wait_for(
        lambda status: any(
            w.status == "standby" for n in status.nodes for w in n.workers
        )
    )
    assert status.world_size == 2
    for one in [second, *second.children(recursive=True)]:
        one.kill()
    job.wait_for(lambda status: whole(2)(status) and len(status.nodes) == 2)
    codes = job.wait()
    assert (codes["node0"], codes["node2"]) == (0, 0), job.text()
    steps_are_whole(job)


@pytest.mark.faults
def test_master_dies_while_a_worker_does(job):
    job = job()
    job.start_node()
    job.start_node()
    job.wait_for_step(5, num_workers=2)
    master = job.master()
    victim = psutil.Process(job.members()[1].pid)
    master.kill()
    victim.kill()
    job.wait_for(lambda status: status.incarnation == 2 and status.epoch >= 2)
    assert job.wait() == {"node0": 0, "node1": 0}, job.text()
    steps_are_whole(job)


@pytest.mark.faults
@pytest.mark.skipif(bool(faults.missing_because("network")), reason="needs root")
@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_node_that_is_cut_off_comes_back_and_takes_the_state_anew(job, tmp_path):
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=master"
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
    names = ["-addext", "subjectAltName=IP:10.87.0.1"]
    subprocess.run([*words.split(), *files, *names], check=True, capture_output=True)
    with faults.Network(2) as network:
        address = f"{network.address(0)}:29400"
        options = ["--tls-ca", str(tmp_path / "certificate")]
        job = job(
            *options,
            address=address,
            env={"GLOO_SOCKET_IFNAME": "eth0"},
            arguments=["--steps", "200", "--dtype", "float64", "--pause-s", "0.05"],
        )
        certificate = ["--tls-certificate", str(tmp_path / "certificate")]
        certificate += ["--tls-key", str(tmp_path / "key")]
        job.start_node(*certificate, start=partial(network.start, 0))
        job.start_node(start=partial(network.start, 1))
        wait_for_world(job, 2)
        with network.cut(1):
            wait_for_world(job, 1)
        wait_for_world(job, 2)
        assert job.wait() == {"node0": 0, "node1": 0}, job.text()
    steps_are_whole(job, 200)


def wait_for_world(job, world_size, timeout_s=60.0):
    """Waits until a world of a size makes steps, by what workers write."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + timeout_s:
        lines = [one for one in job.steps()[-5:] if one["at_s"] > began_s]
        if lines and all(one["world_size"] == world_size for one in lines):
            return
        time.sleep(0.1)
    raise AssertionError(job.text())


@pytest.mark.faults
def test_node_leaves_although_the_master_dies_as_it_says_so(job):
    job = job("--grace-s", "20", arguments=["--steps", "100000", "--pause-s", "0.02"])
    job.start_node()
    leaver = job.start_node()
    job.wait_for_step(3, num_workers=2)
    master = job.master()
    master.suspend()
    leaver.send_signal(signal.SIGTERM)
    while "this node leaves" not in job.text():
        time.sleep(0.01)
    master.kill()
    job.wait_for(lambda status: status.incarnation == 2 and status.world_size == 1)
    assert leaver.wait(60) == 0
    assert job.status().reason.startswith("node1/")
    assert job.status().reason.endswith("is leaving")
    job.call("Stop", pb.StopRequest(reason="the test is over", exit_code=0))
    assert job.wait() == {"node0": 0, "node1": 0}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--grace-s", "nan"], "--grace-s: must be a number, got 'nan'"),
        (["--min-workers", "0"], "--min-workers: must be at least 1, got 0"),
        (
            ["--nproc-per-node", "x"],
            "--nproc_per_node: must be a whole number, got 'x'",
        ),
        (["--nproc-per-node", "0"], "--nproc_per_node: must be at least 1, got 0"),
        (["--nnodes", "4:2"], "--nnodes: MIN must not be more than MAX, got '4:2'"),
        (["--nnodes", "some"], "--nnodes: must be a whole number, got 'some'"),
        (["--min-workers", "2"], "--min-workers must be at most 1, which is all that "),
        (["--frozen-s", "0"], "--frozen-s: must be at least 0.2, got 0"),
        (["--notices", "ibm"], "--notices must be 'none', 'auto' or a cloud"),
        (["--rdzv-endpoint", "a:65536"], "a port to 65535"),
        (["--metrics", "127.0.0.1:99999"], "a port to 65535, got '127.0.0.1:99999'"),
        (["--nnodes", "2"], "several nodes, or a journal, need --rdzv-endpoint"),
        (["--metrics", "127.0.0.1:0"], "--metrics is for a job with --rdzv-endpoint"),
        (["--tls-ca", "a.pem"], "--tls-ca is for a job with --rdzv-endpoint"),
        (
            ["--tls-certificate", "a", "--tls-key", "b"],
            "--tls-certificate is for a job",
        ),
        (["--token-file", "token"], "--token-file is for a job with --rdzv-endpoint"),
        (
            ["--standalone", "--rdzv-endpoint", "127.0.0.1:1"],
            "--rdzv-endpoint is for a job",
        ),
        (
            ["--workers-per-copy", "2"],
            "--nproc-per-node must be a multiple of --workers-per-copy",
        ),
        (["--tee"], "--tee needs a --log-dir"),
        (["--rdzv-endpoint", "127.0.0.1:9"], "the job's token: pass --token-file"),
        (
            ["--rdzv-endpoint", "127.0.0.1", "--token-file", "token"],
            "or several with commas between them, got '127.0.0.1'",
        ),
        (
            ["--node", "a/b"],
            "--node, its name, must not be empty and have no '/', got 'a/b'",
        ),
    ],
)
def test_options_that_cannot_be_are_named(tmp_path, monkeypatch, options, says, capsys):
    (tmp_path / "train.py").touch()
    write_token(tmp_path / "token", "x" * 30)
    monkeypatch.chdir(tmp_path)
    status = ending(["run", *options, "train.py"])
    wrong_use(status, *capsys.readouterr(), says)


@pytest.mark.faults
def test_journal_of_a_job_that_has_ended_is_no_new_training(job):
    job = job(nnodes="1", arguments=["--steps", "3"])
    job.start_node()
    assert job.wait() == {"node0": 0}, job.text()
    job.start_node(name="node0")
    assert job.wait() == {"node0": 1}, job.text()
    says = " with 0: all workers have finished; use another journal to train again"
    assert f"{says}\n" in job.text()
    # Where a supervisor may start agents again that have ended.
    job.start_node("--on-ended", "succeed", name="node0")
    assert job.wait() == {"node0": 0}, job.text()
    steps_are_whole(job, 3)


@pytest.mark.faults
def test_agent_that_finds_no_master_says_so_and_gives_up(job):
    job = job("--patience-s", "5", keeps_master=False)
    assert job.start_node().wait(60) == 1, job.text()
    says = f"the master at {job.address} does not answer: "
    assert says in job.text()
    assert "this agent looks for it for 5 s" in job.text()
    assert f"the master at {job.address} has not answered for 5 s: " in job.text()
    assert "Traceback" not in job.text()


BOTH = "a.example:29400,b.example:29400"


@pytest.mark.parametrize(
    ("options", "env", "address"),
    [
        ([], {}, BOTH),
        (["--rdzv-endpoint", "c:1"], {}, "c:1"),
        (["--standalone"], {}, None),
        # One that runs in a worker is no node of the job around it.
        ([], {"DRIVETRAIN_ELASTIC_AGENT": "/tmp/agent"}, None),
        ([], {"DRIVETRAIN_ELASTIC_MASTER": ""}, None),
    ],
)
def test_master_is_where_an_option_says_or_the_environment(
    tmp_path, monkeypatch, options, env, address
):
    (tmp_path / "train.py").write_text(
        "from drivetrain_elastic.examples import byte_lm"
    )
    token = {"DRIVETRAIN_ELASTIC_TOKEN": "x" * 30}
    for name, value in {"DRIVETRAIN_ELASTIC_MASTER": BOTH, **token, **env}.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    populate_run_parser(parser)
    arguments = parser.parse_args([*options, str(tmp_path / "train.py")])
    require_arguments(arguments)
    assert agent_of(arguments)._address == address


def test_agent_that_keeps_the_master_says_itself_where(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_MASTER", BOTH)
    words = ["run", "--journal", "job.db", "--token-file", "token", "train.py"]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "a journal, need --rdzv-endpoint HOST:PORT" in capsys.readouterr().err


@pytest.mark.faults
def test_agents_that_do_not_belong_are_refused_and_end(job, tmp_path):
    job = job(arguments=["--steps", "100000", "--pause-s", "0.02"])
    job.start_node()
    job.wait_for_step(3)
    wrong = tmp_path / "wrong"
    wrong.write_text("x" * 30)
    wrong.chmod(0o600)
    for options, says in (
        (["--token-file", str(wrong)], "the call carries a wrong token"),
        (["--nnodes", "1:3"], "start all agents of a job with the same options"),
        (["--node", "node0"], "node 'node0' is there already"),
    ):
        agent = job.start_node(*options)
        assert agent.wait(60) == 1, options
        assert says in job.text()
    (tmp_path / "other").mkdir()
    second = job.start_node("--journal", str(tmp_path / "other" / "job.db"))
    assert second.wait(60) == 1
    assert "is the port in use?" in job.text()
    job.call("Stop", pb.StopRequest(reason="the test is over", exit_code=4))
    assert job.wait()["node0"] == 4
    assert "the test is over" in job.text()
