"""torchrun agents that meet at the master: restarts, nodes that come, go and fail."""

import os
import signal
import subprocess
import sys
import time

import pytest
from fake_agent import wait_for
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from drivetrain_elastic._agent._torchrun_rendezvous import MasterRendezvous
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._token import write_token
from drivetrain_elastic._membership._torchrun_end import CLOSED, AgentEnd, end_of
from drivetrain_elastic.cli import main
from drivetrain_elastic.protocol import messages as pb

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
folder, rank, world = sys.argv[1], dist.get_rank(), dist.get_world_size()
while not os.path.exists(f"{folder}/stop"):
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == world
    with open(f"{folder}/{os.getpid()}", "w") as file:
        file.write(f"{world} {rank} {time.monotonic()}")
    time.sleep(0.05)
"""


class Torchruns:
    """torchrun agents of one job."""

    def __init__(self, folder, master, nnodes):
        self.folder, self.master, self.nnodes = folder, master, nnodes
        (folder / "script.py").write_text(SCRIPT)
        (folder / "state").mkdir()
        self.agents = []

    def start(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]
        command += ["--rdzv-backend=drivetrain", f"--nnodes={self.nnodes}"]
        command += [f"--rdzv-endpoint={self.master.address}", "--max-restarts=3"]
        command += ["--local-addr=127.0.0.1", "--rdzv-conf=last_call_timeout=0.5"]
        command += [str(self.folder / "script.py"), str(self.folder / "state")]
        env = {**os.environ, "DRIVETRAIN_ELASTIC_TOKEN": self.master.token}
        output = (self.folder / f"agent{len(self.agents)}.txt").open("w")
        with output:
            agent = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        self.agents.append(agent)
        return agent

    def workers(self, world_size, since_s, timeout_s=60.0):
        """Waits until so many workers have made a step since; returns them by rank."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            found = {}
            for path in (self.folder / "state").iterdir():
                words = path.read_text().split()
                is_new = len(words) == 3 and float(words[2]) > since_s
                if is_new and int(words[0]) == world_size:
                    found[int(words[1])] = int(path.name)
            if len(found) == world_size:
                return found
            time.sleep(0.05)
        raise AssertionError(self.text())

    def text(self):
        paths = sorted(self.folder.glob("agent*.txt"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in paths)

    def finish(self):
        (self.folder / "state" / "stop").touch()
        return [agent.wait(60) for agent in self.agents]


@pytest.fixture
def torchruns(job, tmp_path):
    made = []

    def make(nnodes):
        made.append(Torchruns(tmp_path, job(node_timeout_s=2.0), nnodes))
        return made[-1]

    yield make
    for one in made:
        for agent in one.agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in one.agents:
            agent.wait(60)


@pytest.mark.faults
def test_torchrun_restarts_replaces_and_grows(torchruns):
    runs = torchruns("1:2")
    first = runs.start()
    runs.workers(1, 0.0)
    # A second node comes: with torchrun's own rendezvous this ends the job.
    second = runs.start()
    workers = runs.workers(2, time.monotonic())
    os.kill(workers[1], signal.SIGKILL)
    began_s = time.monotonic()
    again = runs.workers(2, began_s + 0.5)
    assert set(again.values()).isdisjoint(workers.values())
    # A node leaves, and the other one goes on at once.
    second.send_signal(signal.SIGTERM)
    runs.workers(1, time.monotonic())
    runs.agents.remove(second)
    second.wait(60)
    assert runs.finish() == [0], runs.text()
    assert first.returncode == 0


@pytest.mark.slow
def test_torchrun_without_the_token_is_refused(job, tmp_path):
    master = job()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1"]
    command += ["--rdzv-backend=drivetrain", f"--rdzv-endpoint={master.address}"]
    command += [str(tmp_path / "script.py")]
    for token, says in (
        (None, "needs the master's address"),
        ("x" * 20, "wrong token"),
    ):
        env = {**os.environ, **({"DRIVETRAIN_ELASTIC_TOKEN": token} if token else {})}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert says in done.stderr


@pytest.mark.faults
def test_master_tells_who_runs_under_torchrun(torchruns, capsys, tmp_path):
    runs = torchruns("1:1")
    agent = runs.start()
    runs.workers(1, 0.0)
    with MasterClient(runs.master.address, runs.master.token) as client:
        status = client.call("GetStatus", pb.StatusRequest())
    (node,) = status.nodes
    assert node.pid == agent.pid
    status = wait_for(runs.master, lambda s: s.nodes[0].workers[0].pid)
    token = tmp_path / "token"
    write_token(token, runs.master.token)
    words = ["--address", runs.master.address, "--token-file", str(token)]
    assert main(["status", *words]) == 0
    shown = capsys.readouterr().out
    assert "world 1 of 1 agents of torchrun, each with ranks of its own: " in shown
    worker = f"/0: member, rank 0, process {agent.pid}, runs its ranks as an agent"
    assert worker in shown
    assert "step 0" not in shown
    assert runs.finish() == [0], runs.text()


STOP, LEAVE = pb.Command.STOP_ALL, pb.Command.LEAVE


@pytest.fixture
def rendezvous(job):
    """Makes the rendezvous of agents that are all in this process."""
    masters, made = [], []

    def make(*, min_nodes=1, max_nodes=1):
        if not masters:
            masters.append(job())
        one = MasterRendezvous(
            masters[0].address,
            masters[0].token,
            run_id="run",
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            local_address="127.0.0.1",
            last_call_s=0.0,
            join_s=60.0,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.shutdown()


def client_of(rendezvous):
    return rendezvous._client


def wait_until(condition, timeout_s=60.0):
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def ended_with(rendezvous):
    """Has torchrun's agent ask for the next world, and returns with what it ends."""
    with pytest.raises(SystemExit) as caught:
        rendezvous.next_rendezvous()
    # As whoever calls the rendezvous without torchrun knows it.
    assert isinstance(caught.value, RendezvousClosedError)
    return caught.value.code, str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_job_that_is_stopped_ends_its_torchrun_agents(rendezvous, code):
    one = rendezvous()
    one.next_rendezvous()
    assert one.num_nodes_waiting() == 0
    stop = pb.StopRequest(reason="enough", exit_code=code)
    client_of(one).call("Stop", stop)
    wait_until(one.num_nodes_waiting)
    assert ended_with(one) == (code, "the job has ended: enough")
    one.shutdown()


def test_node_that_is_to_leave_ends_its_torchrun_agent_and_not_the_job(rendezvous):
    one = rendezvous()
    one.next_rendezvous()
    with MasterClient(one._client.address, one._stream._token) as client:
        leave = pb.LeaveRequest(node=one._node, within_s=10.0, reason="it is wanted")
        client.call("Leave", leave)
        wait_until(one.num_nodes_waiting)
        assert ended_with(one) == (0, "this node leaves: it is wanted")
        one.shutdown()
        # It has said goodbye, which the master may not have read yet.
        wait_until(lambda: not client.call("GetStatus", pb.StatusRequest()).nodes)
        assert client.call("GetStatus", pb.StatusRequest()).ended == ""


@pytest.mark.slow
def test_torchrun_agent_that_ends_first_does_not_stop_the_others(rendezvous):
    one = rendezvous()
    one.next_rendezvous()
    client_of(one).call("Stop", pb.StopRequest(reason=CLOSED))
    wait_until(one.is_closed)
    assert one.num_nodes_waiting() == 0
    # Its own workers have failed, and cannot start again: that is no success.
    assert ended_with(one) == (1, f"the job has ended: {CLOSED}")


@pytest.mark.slow
def test_torchrun_agent_that_comes_after_the_end_says_so(rendezvous):
    one = rendezvous()
    one.next_rendezvous()
    client_of(one).call("Stop", pb.StopRequest(reason="enough"))
    wait_until(one.is_closed)
    one.shutdown()
    code, says = ended_with(rendezvous())
    assert code == 1
    assert says.startswith("the job in this journal ended at 20")
    assert says.endswith(" with 0: enough; use another journal to train again")


@pytest.mark.slow
def test_end_that_stops_workers_counts_and_the_first_of_them():
    closed = end_of(pb.Command(what=STOP, reason=CLOSED))
    leave = end_of(pb.Command(what=LEAVE, reason="spot", exit_code=0))
    stop = end_of(pb.Command(what=STOP, reason="broken", exit_code=1))
    assert closed.or_before(None) == closed
    assert leave.or_before(closed) == leave
    assert stop.or_before(leave) == leave == AgentEnd(0, "this node leaves: spot")
    assert end_of(pb.Command(what=pb.Command.CHECK)) is None


@pytest.mark.faults
def test_torchrun_agents_end_when_their_node_leaves_and_when_the_job_is_stopped(
    torchruns,
):
    runs = torchruns("1:2")
    first, second = runs.start(), runs.start()
    runs.workers(2, 0.0)
    with MasterClient(runs.master.address, runs.master.token) as client:
        status = client.call("GetStatus", pb.StatusRequest())
        (leaver,) = [node.node for node in status.nodes if node.pid == second.pid]
        client.call("Leave", pb.LeaveRequest(node=leaver, within_s=10.0, reason="x"))
        assert second.wait(60) == 0, runs.text()
        runs.workers(1, time.monotonic())
        client.call("Stop", pb.StopRequest(reason="it has been seen"))
        wait_until(lambda: "it has been seen" in runs.text())
        # Whoever has heard it needs no master any more.
        runs.master.stop()
        assert first.wait(60) == 0, runs.text()
    assert "the job has ended: it has been seen" in runs.text()
    assert "this node leaves: x" in runs.text()
    assert "Traceback" not in runs.text()


def test_handler_is_known_to_torchrun_whatever_is_imported_first():
    program = (
        "import drivetrain_elastic._agent._torchrun_rendezvous;"
        "from torch.distributed.elastic.rendezvous import registry;"
        "print('drivetrain' in registry.handler_registry._registry)"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")
