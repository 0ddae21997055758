"""Agents at the master's door: who gets in, what they are told, what becomes of them."""

import queue
import threading
import time
from types import SimpleNamespace

import grpc
import pytest
from fake_agent import (
    FAILED,
    FINISHED,
    READY,
    FakeAgent,
    events_of,
    statuses,
    wait_for,
    worker,
)

from drivetrain_elastic import Agent as AnyAgent
from drivetrain_elastic import AgentConfig, Master
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.decisions.ending import Ending
from drivetrain_elastic.decisions.past_ending import describe_past_ending
from drivetrain_elastic.journal import JournalFullError
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import METHODS, credentials


def test_world_is_formed_pushed_and_follows_deaths(agent):
    a = agent("a")
    assert a.next("welcome").incarnation == 1
    b = agent("b")
    a.ready(0, 1)
    b.ready(0, 1)
    wanted = (1, ["a/0", "a/1", "b/0", "b/1"])
    assert (a.world(), b.world()) == (wanted, wanted)
    b.report(("b/1", 1, {"state": FAILED, "reason": "was killed by SIGKILL"}))
    assert a.world() == (2, ["a/0", "a/1", "b/0"])


def test_worker_and_its_replacement_are_one_change(agent):
    a = agent("a", max_workers=2)
    a.ready(0, 1)
    assert a.world() == (1, ["a/0", "a/1"])
    a.report(("a/1", 1, {"state": FAILED}), ("a/2", 1, {"state": READY}))
    assert a.world() == (2, ["a/0", "a/2"])


@pytest.mark.slow
def test_node_that_is_silent_is_lost_and_its_workers_with_it(agent):
    a, b = agent("a"), agent("b")
    a.ready(0, 1)
    b.ready(0)
    a.world()
    b.hang_up()
    stop = threading.Event()
    beating = threading.Thread(
        target=lambda: [a.beat() for _ in iter(lambda: stop.wait(0.1), True)]
    )
    beating.start()
    try:
        assert a.world() == (2, ["a/0", "a/1"])
    finally:
        stop.set()
        beating.join()


def test_node_whose_line_breaks_for_a_moment_is_not_lost(agent):
    a = agent("a", max_workers=2)
    a.ready(0, 1)
    assert a.world()[0] == 1
    a.hang_up()
    again = agent("a", [worker("a", 0), worker("a", 1)], max_workers=2)
    # The world is told again, and no other one follows.
    assert again.world() == (1, ["a/0", "a/1"])
    again.say(broken=pb.Broken(epoch=1, worker="a/0", reason="no route"))
    assert again.world() == (2, ["a/0", "a/1"])


def test_worker_that_died_while_the_line_was_broken_is_gone(agent):
    a = agent("a")
    a.ready(0, 1, 2)
    assert len(a.world()[1]) == 3
    a.hang_up()
    again = agent("a", [worker("a", 0), worker("a", 2)])
    assert again.world() == (2, ["a/0", "a/2"])


def test_master_that_is_replaced_keeps_the_world(agent, job):
    first = job(node_timeout_s=1.0)
    a = agent("a", master=first, max_workers=2)
    a.ready(0, 1)
    assert a.world() == (1, ["a/0", "a/1"])
    first.stop()
    second = job(node_timeout_s=1.0)
    a = agent("a", [worker("a", 0), worker("a", 1)], master=second, max_workers=2)
    assert a.next("welcome").incarnation == 2
    assert a.world() == (1, ["a/0", "a/1"])
    a.report(("a/1", 1, {"state": FAILED}), ("a/2", 1, {"state": READY}))
    assert a.world() == (2, ["a/0", "a/2"])


def test_broken_world_is_formed_anew_and_old_news_is_no_news(agent):
    a = agent("a", max_workers=2)
    a.ready(0, 1)
    assert a.world()[0] == 1
    for _ in range(2):
        a.say(broken=pb.Broken(epoch=1, worker="a/0", reason="connection reset"))
    world = a.next("world")
    assert (world.epoch, world.reason) == (
        2,
        "collectives failed: a/0: connection reset",
    )
    assert world.broken_epoch == 1
    a.say(broken=pb.Broken(epoch=1, worker="a/1", reason="late"))
    a.report(("a/1", 1, {"state": FAILED}), ("a/2", 1, {"state": READY}))
    assert a.world() == (3, ["a/0", "a/2"])


def test_what_a_master_before_may_have_heard_is_said_again(agent, job):
    first = job(node_timeout_s=1.0)
    a = agent("a", master=first, max_workers=2)
    a.ready(0, 1)
    assert a.world() == (1, ["a/0", "a/1"])
    first.stop()
    second = job(node_timeout_s=1.0)
    broken = pb.Broken(epoch=1, worker="a/1", reason="connection reset")
    both = [worker("a", 0), worker("a", 1)]
    says = {"broken": broken}
    a = agent("a", both, master=second, max_workers=2, says=says)
    assert a.world()[0] == 1
    assert a.next("world").reason == "collectives failed: a/1: connection reset"
    # And once more, which is no news.
    a.hang_up()
    a = agent("a", both, master=second, max_workers=2, says=says)
    assert a.world()[0] == 2
    a.report(("a/1", 1, {"state": FAILED}), ("a/2", 1, {"state": READY}))
    assert a.world() == (3, ["a/0", "a/2"])


@pytest.mark.parametrize("code", [0, 5])
def test_workers_that_finished_are_known_to_the_next_master(agent, job, code):
    first = job(node_timeout_s=1.0)
    a, b = (agent(node, master=first) for node in "ab")
    a.ready(0)
    b.ready(0)
    a.world()
    a.report(("a/0", 0, {"state": FINISHED, "exit_code": code, "reason": "ended"}))
    wait_for(first, lambda status: "finished" in statuses(status))
    first.stop()
    second = job(node_timeout_s=1.0)
    wait_for(second, lambda status: "finished" in statuses(status))
    # One says it again, and that it was heard is nobody's affair.
    again = [worker("a", 0, FINISHED)] if code else []
    a = agent("a", again, master=second)
    b = agent("b", [worker("b", 0, FINISHED)], master=second)
    for one in (a, b):
        command = one.next("command")
        assert (command.what, command.exit_code) == (pb.Command.STOP_ALL, min(code, 1))


@pytest.mark.slow
def test_worker_that_finished_while_its_node_was_missed_counts(agent):
    a = agent("a", min_workers=1, max_workers=1)
    a.ready(0)
    assert a.world() == (1, ["a/0"])
    a.hang_up()
    wait_for(agent.masters[0], lambda status: not status.nodes)
    says = [worker("a", 0, FINISHED)]
    a = agent("a", says, min_workers=1, max_workers=1)
    command = a.next("command")
    assert (command.what, command.exit_code) == (pb.Command.STOP_ALL, 0)


def test_worker_that_is_missed_when_others_have_finished_fails_the_job(agent):
    a, b = agent("a"), agent("b")
    a.ready(0)
    b.ready(0)
    a.world()
    a.report(("a/0", 0, {"state": FINISHED}))
    # Each agent has a line of its own, and what comes on them is in no order.
    wait_for(agent.masters[0], lambda status: "finished" in statuses(status))
    b.hang_up()
    b = agent("b", pid=2)
    command = b.next("command")
    assert (command.what, command.exit_code) == (pb.Command.STOP_ALL, 1)
    assert "finished, but b/0 is gone with an agent of node b" in command.reason


def test_node_that_leaves_is_known_to_the_next_master(agent, job):
    first = job(node_timeout_s=1.0)
    a, b = (agent(node, master=first) for node in "ab")
    a.ready(0, 1)
    b.ready(0)
    assert b.world()[0] == 1
    first.stop()
    second = job(node_timeout_s=1.0)
    agent("a", [worker("a", 0), worker("a", 1)], master=second)
    leave = pb.LeaveRequest(node="b", within_s=4.0, reason="spot reclaim")
    b = agent("b", [worker("b", 0)], master=second, says={"leave": leave})
    assert b.next("command").within_s == 4.0
    world = b.next("world")
    assert [one.name for one in world.members] == ["a/0", "a/1"]
    assert world.reason == "b/0 is leaving"
    # It gets no place any more, whenever it comes.
    b.ready(1)
    status = wait_for(second, lambda status: "b/1" in statuses(status, by_name=True))
    assert statuses(status, by_name=True)["b/1"] == "leaving"


def test_node_whose_line_was_broken_hears_that_it_is_to_leave(agent):
    a, b = agent("a"), agent("b")
    a.ready(0, 1)
    b.ready(0)
    assert b.world()[0] == 1
    b.say(leave=pb.LeaveRequest(node="b", within_s=5.0, reason="spot reclaim"))
    b.next("command")
    b.hang_up()
    b = agent("b", [worker("b", 0)])
    assert b.next("command").what == pb.Command.LEAVE


def test_place_is_given_up_whose_worker_never_lived(agent):
    a = agent("a", max_workers=2)
    a.ready(0)
    gone = {"state": FAILED, "reason": "could not be started", "given_up": True}
    a.report(("a/1", 1, gone))
    command = a.next("command")
    assert (command.what, command.exit_code) == (pb.Command.STOP_ALL, 1)
    assert command.reason.endswith("a/1 could not be started")


class FullJournal:
    """A journal in memory, without room at times."""

    incarnation = 1

    def __init__(self):
        self.kept, self.is_full = [], False

    def records(self):
        return list(self.kept)

    def append(self, records):
        if self.is_full:
            message = "no room"
            raise JournalFullError(message)
        self.kept += records

    def close(self):
        pass


@pytest.mark.slow
def test_nobody_who_comes_hears_of_a_world_or_an_end_before_it_is_written(agent):
    journal = FullJournal()
    with Master(journal, node_timeout_s=30.0) as master:
        a = agent("a", master=master, min_workers=1, max_workers=2)
        a.ready(0, 1)
        assert a.world() == (1, ["a/0", "a/1"])
        journal.is_full = True
        a.say(broken=pb.Broken(epoch=1, worker="a/0", reason="reset"))
        wait_for(master, lambda status: status.epoch == 2)
        b = agent("b", master=master, min_workers=1, max_workers=2)
        assert b.world() == (1, ["a/0", "a/1"])
        journal.is_full = False
        assert b.world() == (2, ["a/0", "a/1"])
        journal.is_full = True
        with MasterClient(master.address, master.token) as client:
            client.call("Stop", pb.StopRequest(reason="enough", exit_code=4))
        c = agent("c", master=master, min_workers=1, max_workers=2)
        assert c.world()[0] == 2
        # Said again after what the master has told of itself.
        assert c.heard.empty()
        journal.is_full = False
        assert c.next("command").reason == "enough"
        assert [one.body["exit_code"] for one in journal.kept if one.kind == "ended"]


def test_finished_workers_end_the_job_for_all_nodes(agent):
    a, b = agent("a"), agent("b")
    a.ready(0)
    b.ready(0)
    a.world()
    a.report(("a/0", 0, {"state": FINISHED}))
    b.report(("b/0", 0, {"state": FINISHED}))
    for one in (a, b):
        command = one.next("command")
        assert (command.what, command.exit_code) == (pb.Command.STOP_ALL, 0)
        assert command.reason == "all workers have finished"
        assert command.ended_at_s == 0.0
    late = agent("c")
    command = late.next("command")
    assert command.what == pb.Command.STOP_ALL
    assert command.ended_at_s > 0.0


def test_master_of_a_journal_whose_job_has_ended_says_so_and_when(job, agent, caplog):
    first = job()
    one = agent("a", master=first)
    one.next("welcome")
    with MasterClient(first.address, first.token) as client:
        client.call("Stop", pb.StopRequest(reason="enough", exit_code=4))
        one.next("command")
        events = client.stream("WatchEvents", pb.EventsRequest(), 10.0)
        (at_s,) = [event.at_s for event in events if event.kind == "ended"]
    assert not caplog.records
    first.stop()
    command = agent("b", master=job()).next("command")
    assert (command.exit_code, command.ended_at_s) == (4, at_s)
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said == describe_past_ending(Ending(4, "enough"), at_s)


@pytest.mark.slow
def test_master_of_a_journal_whose_job_has_ended_misses_nobody(job, agent):
    first = job()
    one = agent("a", master=first, min_workers=1)
    one.ready(0)
    one.world()
    with MasterClient(first.address, first.token) as client:
        client.call("Stop", pb.StopRequest(reason="enough"))
        one.next("command")
    first.stop()
    one.hang_up()
    second = job(node_timeout_s=0.2)
    before = events_of(second)
    # Nothing is to happen in a time in which it would.
    time.sleep(1.0)
    assert events_of(second) == before
    assert before[-1][0] == "master"


@pytest.mark.parametrize(
    ("on_ended", "num_streams", "code"),
    [("fail", 1, 1), ("succeed", 1, 0), ("fail", 2, 0)],
)
def test_agent_that_finds_the_job_over_has_failed_unless_it_was_there(
    on_ended, num_streams, code
):
    command = pb.Command(
        what=pb.Command.STOP_ALL, reason="all workers have finished", ended_at_s=1e9
    )
    agent = AnyAgent(["train.py"], AgentConfig(on_ended=on_ended))
    agent._stream = SimpleNamespace(num_streams=num_streams)
    ends = []
    agent._end = ends.append
    agent._obey(command)
    ((found, reason, _),) = ends
    assert found == code
    assert ("the job in this journal ended at 2001-09-" in reason) == (num_streams == 1)


def test_given_up_places_end_the_job(agent):
    a = agent("a", max_workers=2)
    a.ready(0, 1)
    a.world()
    gone = {"state": FAILED, "reason": "ended with exit code 3", "given_up": True}
    a.report(("a/1", 1, gone))
    command = a.next("command")
    assert (command.what, command.exit_code) == (pb.Command.STOP_ALL, 1)
    assert command.reason == (
        "1 workers are ready, of 2 at least: a/1 ended with exit code 3"
    )


def test_too_few_workers_for_too_long_end_the_job(agent):
    a = agent("a", patience_s=0.3)
    a.ready(0)
    command = a.next("command")
    assert command.exit_code == 1
    assert "and no more came within 0.3 s" in command.reason


def test_planned_leave_is_told_first_and_changes_the_world(agent):
    a, b = agent("a"), agent("b")
    a.ready(0, 1)
    b.ready(0)
    assert b.world()[0] == 1
    b.say(leave=pb.LeaveRequest(node="b", within_s=5.0, reason="spot reclaim"))
    command = b.next("command")
    assert (command.what, command.within_s) == (pb.Command.LEAVE, 5.0)
    world = b.next("world")
    assert [one.name for one in world.members] == ["a/0", "a/1"]
    assert (world.reason, world.broken_epoch) == ("b/0 is leaving", 0)


def test_agent_that_comes_on_a_new_line_is_the_same_one(agent):
    one = {"agent": "the one"}
    agent("a", says=one).next("welcome")
    # Its machine may have lost the first line, of which the master still thinks well.
    agent("a", says=one).next("welcome")


def test_agents_of_one_host_and_process_call_themselves_differently():
    hellos = []
    for _ in range(2):
        agent = AnyAgent(["train.py"], AgentConfig(node="a"))
        agent._worker_group = SimpleNamespace(reports=list)
        hellos.append(agent._hello())
    first, second = hellos
    assert (first.host, first.pid) == (second.host, second.pid)
    assert first.agent != second.agent


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (
            {"says": {"agent": "another"}},
            "ALREADY_EXISTS",
            "node 'a' is there already: process 1 on h",
        ),
        ({"pid": 2}, "ALREADY_EXISTS", "node 'a' is there already: process 1 on h"),
        ({"node": ""}, "INVALID_ARGUMENT", "a node must have a name"),
        (
            {"node": "b", "max_workers": 8},
            "INVALID_ARGUMENT",
            "the job has 2 to 4 workers in units of 1, this agent says 2 to 8 workers",
        ),
        (
            {"node": "b", "min_workers": 5},
            "INVALID_ARGUMENT",
            "min_workers must not be more than max_workers, got 5 and 4",
        ),
    ],
)
def test_agent_that_does_not_fit_is_refused(agent, options, code, says):
    first = agent("a")
    first.next("welcome")
    other = agent(**{"node": "a", **options})
    with pytest.raises(grpc.RpcError) as caught:
        other.next("welcome")
    assert caught.value.code().name == code
    assert says in caught.value.details()
    first.ready(0, 1)
    assert first.world()[0] == 1


def test_line_that_does_not_begin_with_a_hello_is_refused(agent):
    first = agent("a")
    first.next("welcome")
    first.say(heartbeat=pb.Heartbeat())
    bad = FakeAgent.__new__(FakeAgent)
    bad.heard, bad._out = queue.Queue(), queue.Queue()
    bad._channel = grpc.insecure_channel(agent.masters[0].address)
    method = METHODS["Attend"]
    attend = bad._channel.stream_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.reply.FromString,
    )
    bad._out.put(pb.FromAgent(heartbeat=pb.Heartbeat()))
    bad._call = attend(
        iter(bad._out.get, None), metadata=credentials(agent.masters[0].token)
    )
    with pytest.raises(grpc.RpcError, match="must say who it is"):
        next(bad._call)
    bad._channel.close()
