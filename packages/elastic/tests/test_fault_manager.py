"""What a master does about what fails, or was checked."""

import time

import grpc
import pytest
from fake_agent import (
    FAILED,
    beat_of,
    call,
    events_of,
    say_window,
    status_of,
    wait_for,
    wait_for_event,
)

from drivetrain_elastic._client._master_client import RefusedError
from drivetrain_elastic._master._failure_history import FailureHistory
from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.failures import Diagnosis, FailureClass

GPU = pb.Failure(
    failure_class="gpu-hardware",
    cause="xid-79",
    evidence="NVRM: Xid 79, GPU has fallen off the bus",
    blames_node=True,
)
PROGRAM = pb.Failure(
    failure_class="program",
    cause="value-error",
    evidence="ValueError: no such thing",
    traceback="Traceback (most recent call last):\n  train.py, line 3\nValueError: no such",
    place="train.py:3",
)


def failed(node, slot, failure=None):
    report = {"state": FAILED, "exit_code": 1, "reason": "ended with exit code 1"}
    if failure is not None:
        report["failure"] = failure
    return f"{node}/{slot}", slot, report


def test_program_error_ends_the_job_at_once_with_its_traceback(pair):
    a, b, master = pair()
    a.report(failed("a", 0))
    a.report(failed("a", 0, PROGRAM))
    for one in (a, b):
        command = one.next("command")
        assert command.what == pb.Command.STOP_ALL
        assert command.exit_code == 1
        assert "train.py, line 3\nValueError" in command.reason
    subject, reason = wait_for_event(master, "diagnosis")
    assert subject == "a/0"
    assert reason.startswith(
        "program, value-error: ValueError: no such thing; stop-job"
    )


def test_broken_gpu_excludes_its_machine_and_nobody_else(pair, agent):
    a, b, master = pair()
    a.report(failed("a", 0))
    a.report(failed("a", 0, GPU))
    command = a.next("command")
    assert (command.what, command.exit_code) == (pb.Command.LEAVE, 1)
    assert "xid-79" in command.reason
    (excluded,) = status_of(master).excluded
    assert (excluded.machine, excluded.node) == ("a", "a")
    a.say(goodbye=pb.Goodbye(reason="left"))
    assert b.world()[1]  # it goes on
    wait_for(master, lambda s: [one.node for one in s.nodes] == ["b"])
    # It may not come back, under whatever process.
    again = agent("a", pid=7, master=master)
    with pytest.raises(grpc.RpcError) as caught:
        again.next("welcome")
    assert "excluded" in caught.value.details()
    assert "readmit a" in caught.value.details()


def test_machine_that_is_readmitted_may_take_part(pair, agent):
    a, _, master = pair()
    a.report(failed("a", 0, GPU))
    a.next("command")
    a.say(goodbye=pb.Goodbye(reason="left"))
    wait_for(master, lambda s: [one.node for one in s.nodes] == ["b"])
    call(master, "Readmit", pb.ReadmitRequest(machine="a"))
    assert agent("a", pid=7, master=master).next("welcome")
    with pytest.raises(RefusedError, match="'a' is not excluded; excluded are: none"):
        call(master, "Readmit", pb.ReadmitRequest(machine="a"))


def test_exclusion_outlives_the_master(pair, job, agent):
    a, b, first = pair()
    a.report(failed("a", 0, GPU))
    a.next("command")
    first.stop()
    for one in (a, b):
        one.hang_up()
    second = job(node_timeout_s=1.0)
    assert [one.machine for one in status_of(second).excluded] == ["a"]
    with pytest.raises(grpc.RpcError):
        agent("a", master=second).next("welcome")
    kinds = [kind for kind, *_ in events_of(second)]
    assert kinds.count("excluded") == 1


def test_it_is_the_machine_that_is_excluded_not_the_name(agent):
    a = agent("a", says={"machine": "rack1"}, min_workers=1)
    a.ready(0)
    a.world()
    a.report(failed("a", 0, GPU))
    assert a.next("command").what == pb.Command.LEAVE
    a.say(goodbye=pb.Goodbye(reason="left"))
    master = agent.masters[0]
    wait_for(master, lambda s: not s.nodes)
    # The same node has moved to another machine.
    moved = agent("a", pid=2, says={"machine": "rack2"}, min_workers=1)
    assert moved.next("welcome")


def test_node_that_may_still_work_stays_if_nobody_can_take_its_place(pair):
    a, b, master = pair(min_workers=4)
    soft = pb.Failure(
        failure_class="interconnect", cause="link-down", evidence="x", blames_node=True
    )
    for slot in range(3):
        a.report(failed("a", slot, soft))
    subject, reason = wait_for_event(master, "not-excluded", alive=(a, b))
    assert subject == "a"
    assert "no other could take its place" in reason
    assert not status_of(master).excluded


def test_failure_that_is_told_twice_counts_once(pair):
    a, _, master = pair()
    crash = pb.Failure(failure_class="crash", cause="sigsegv", evidence="signal 11")
    for _ in range(3):
        a.report(failed("a", 0, crash))
    a.report(failed("a", 1, crash))
    while len([e for e in events_of(master) if e[0] == "diagnosis"]) < 2:
        time.sleep(0.01)
    subjects = [
        subject for kind, subject, _ in events_of(master) if kind == "diagnosis"
    ]
    assert subjects == ["a/0", "a/1"]


def test_failure_of_a_class_that_is_not_known_here_is_unknown(pair):
    a, _, master = pair()
    a.report(failed("a", 0, pb.Failure(failure_class="gremlins", cause="x")))
    assert wait_for_event(master, "diagnosis")[1].startswith("unknown, x")


def test_what_is_broken_before_a_worker_fails_by_it_is_acted_on(pair):
    a, _, master = pair()
    a.say(alert=pb.Alert(kind="gpu-hardware", reason="fallen off", failure=GPU))
    assert a.next("command").what == pb.Command.LEAVE
    assert wait_for_event(master, "alert") == ("a", "gpu-hardware: fallen off")


def test_suspicious_failure_has_its_node_checked_but_not_again_and_again(pair):
    a, _, master = pair()
    crash = pb.Failure(
        failure_class="crash", cause="sigsegv", evidence="11", blames_node=True
    )
    a.report(failed("a", 0, crash))
    command = a.next("command")
    assert command.what == pb.Command.CHECK
    a.say(check=pb.CheckResult(reason="passed, alone"))
    assert wait_for_event(master, "check") == ("a", "passed, alone")
    assert not status_of(master).excluded


def test_node_that_finds_itself_faulty_is_excluded(pair):
    a, _, master = pair()
    a.say(check=pb.CheckResult(is_faulty=True, reason="disk", faulty={"a": "disk"}))
    assert a.next("command").what == pb.Command.LEAVE
    assert "its check: disk" in status_of(master).excluded[0].reason


def test_node_that_lies_puts_nobody_out(agent):
    nodes = [agent(name) for name in "abc"]
    for one in nodes:
        one.ready(0)
    for one in nodes:
        one.world()
    nodes[0].say(check=pb.CheckResult(reason="passed", faulty={"b": "x", "c": "x"}))
    master = agent.masters[0]
    wait_for_event(master, "check")
    assert not status_of(master).excluded
    for one in nodes[1:]:
        one.say(check=pb.CheckResult(reason="passed", faulty={"a": "slow"}))
    assert nodes[0].next("command").what == pb.Command.LEAVE


@pytest.mark.slow
def test_node_that_was_lost_may_come_back_but_not_again_and_again(agent):
    b = agent("b", min_workers=1)
    b.ready(0)
    b.world()
    master = agent.masters[0]
    for at in range(3):
        a = agent("a", pid=10 + at, min_workers=1, master=master)
        assert a.next("welcome")
        a.ready(at)
        assert len(b.world()[1]) == 2
        a.hang_up()
        wait_for(master, lambda s: len(s.nodes) == 1 or b.beat())
        assert len(b.world()[1]) == 1
    subject, reason = wait_for_event(master, "excluded", alive=[b])
    assert subject == "a"
    assert reason.startswith("node-lost, silent")
    why = [reason for kind, _, reason in events_of(master) if kind == "diagnosis"]
    assert len(why) == 3


def test_worker_that_was_slow_before_it_failed_is_told_of_twice(agent):
    a, b = agent("a"), agent("b")
    for one in (a, b):
        one.ready(0, 1)
    for one in (a, b):
        one.world()
    master = agent.masters[0]
    for number in range(3):
        fast = beat_of("a", {0: 0.1, 1: 0.1}, number=number)
        slow = beat_of("b", {0: 0.1, 1: 0.3}, number=number)
        say_window(master, (a, b), (fast, slow))
    wait_for_event(master, "diagnosis", alive=(a, b))
    hang = pb.Failure(failure_class="hang", cause="stuck", evidence="x")
    b.report(failed("b", 1, hang))
    while len([e for e in events_of(master) if e[0] == "diagnosis"]) < 2:
        a.beat()
    last = [reason for kind, _, reason in events_of(master) if kind == "diagnosis"][-1]
    assert last.startswith("hang, stuck")


def test_failures_count_for_long_enough_that_slow_hangs_add_up():
    failures = FailureHistory([])
    usual_s = failures._config.window_s
    failures.expect_hangs(600.0)
    assert failures._config.window_s == usual_s
    failures.expect_hangs(2400.0)
    assert failures._config.window_s > 4 * 2400.0
    failures.expect_hangs(float("inf"))
    assert failures._config.window_s < float("inf")


def test_job_that_gets_on_between_failures_goes_on_also_under_the_next_master():
    records = []
    first = FailureHistory(records)
    hang = Diagnosis(FailureClass.HANG, "stuck", "a", "x", "a/0")
    for at in range(9):
        first.add(hang._replace(worker=f"a/{at}"))
        first.judge(time.monotonic(), step=at * 100)
    second = FailureHistory([])
    assert all(second.replay(record) for record in records)
    second.add(hang._replace(worker="a/x"))
    (judged,), _ = second.judge(time.monotonic(), step=1000)
    assert judged.gets_on
    second.add(hang._replace(worker="a/y"))
    (judged,), _ = second.judge(time.monotonic(), step=1000)
    assert not judged.gets_on
