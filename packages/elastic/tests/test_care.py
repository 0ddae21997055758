"""What a master does about what fails, is slow, is silent, or was checked."""

import time
import urllib.request

import grpc
import pytest
from fake_agent import FAILED, events_of, wait_for, wait_for_event, worker

from drivetrain_elastic import Master
from drivetrain_elastic._client import MasterClient, RefusedError
from drivetrain_elastic._live_table import show_live
from drivetrain_elastic._master._diagnoses import Diagnoses
from drivetrain_elastic._master._time_keeper import TimeKeeper
from drivetrain_elastic._master._training_watch import TrainingWatch
from drivetrain_elastic.decisions.failures import Diagnosis, FailureClass
from drivetrain_elastic.decisions.progress import ProgressConfig
from drivetrain_elastic.protocol import _messages as pb

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


@pytest.fixture
def pair(agent):
    """Two nodes with two workers each, of which two are enough."""

    def make(**terms):
        a, b = agent("a", **terms), agent("b", **terms)
        a.ready(0, 1)
        b.ready(0, 1)
        assert a.world() == b.world()
        return a, b, agent.masters[0]

    return make


def call(master, name, request):
    with MasterClient(master.address, master.token) as client:
        return client.call(name, request)


def status_of(master):
    return call(master, "GetStatus", pb.StatusRequest())


# ---- failures ----


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


# ---- checks ----


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


# ---- how nodes do ----


def test_silent_node_is_late_before_it_is_lost(agent):
    a = agent("a", min_workers=1)
    a.ready(0)
    a.world()
    master = agent.masters[0]
    subject, reason = wait_for_event(master, "alert")
    assert subject == "a"
    assert reason.startswith("late: not heard of for 0.5")
    assert wait_for_event(master, "node-lost")[0] == "a"


def test_alerts_are_shown_until_they_are_over(pair):
    a, _, master = pair()
    a.say(alert=pb.Alert(kind="traffic", reason="nothing is sent"))
    status = wait_for(master, lambda s: any(node.alerts for node in s.nodes))
    found = {node.node: [one.kind for one in node.alerts] for node in status.nodes}
    assert found == {"a": ["traffic"], "b": []}
    a.say(alert=pb.Alert(kind="traffic", reason="nothing is sent", is_over=True))
    wait_for(master, lambda s: not any(node.alerts for node in s.nodes))


def beat_of(node, times, *, number=0, epoch=1, step=10):
    """A heartbeat with a window in which workers take so long to compute."""
    return pb.Heartbeat(
        workers=[
            pb.WorkerProgress(
                name=f"{node}/{slot}",
                step=step,
                step_s=0.1,
                window=pb.SectionWindow(
                    number=number,
                    epoch=epoch,
                    num_steps=10,
                    sections_s={"compute": seconds},
                    step_s=0.2,
                ),
                accounts=[pb.Account(epoch=epoch, last_step=step, steps_s=step * 0.1)],
            )
            for slot, seconds in times.items()
        ]
    )


def say_window(master, agents, beats):
    """Sends a window of each agent; the master has it when this returns.

    A window that comes two later than those of others is left out.
    """
    step = 10 * (beats[0].workers[0].window.number + 1)
    for agent, beat in zip(agents, beats, strict=True):
        for one in beat.workers:
            one.step = step
        agent.say(heartbeat=beat)
    wait_for(
        master,
        lambda s: all(w.step >= step for node in s.nodes for w in node.workers),
    )


def test_straggler_is_named_and_its_node_excluded_if_others_can_go_on(
    pair, monkeypatch
):
    monkeypatch.setattr("drivetrain_elastic._master._care._SLOW_S", 0.1)
    a, b, master = pair()
    for number in range(3):
        fast = beat_of("a", {0: 0.1, 1: 0.1}, number=number)
        slow = beat_of("b", {0: 0.1, 1: 0.3}, number=number)
        say_window(master, (a, b), (fast, slow))
    subject, reason = wait_for_event(master, "straggler")
    assert subject == "b/1"
    assert "3.00 times as long as the others in 'compute'" in reason
    assert wait_for_event(master, "excluded", alive=(a, b))[0] == "b"
    # It was checked first.
    assert b.next("command").what == pb.Command.CHECK
    assert b.next("command").what == pb.Command.LEAVE
    assert "straggler, slow-compute" in status_of(master).excluded[0].reason


def test_windows_of_an_older_world_blame_nobody(pair):
    a, b, master = pair()
    for number in range(5):
        a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, number=number, epoch=0))
        b.say(heartbeat=beat_of("b", {0: 0.1, 1: 0.3}, number=number, epoch=0))
    wait_for(master, lambda s: all(w.step for node in s.nodes for w in node.workers))
    assert "straggler" not in [kind for kind, *_ in events_of(master)]


def flights(node, **slots):
    return pb.Flights(
        workers=[
            pb.WorkerFlight(
                name=f"{node}/{slot[1:]}",
                operations=[
                    pb.Operation(
                        epoch=1,
                        step=11,
                        collective=collective,
                        name="all-reduce" if collective == 7 else "computing",
                        seconds=9.0,
                        is_waiting=collective == 7,
                    )
                ],
            )
            for slot, collective in slots.items()
        ]
    )


def test_stuck_worker_has_all_asked_and_the_silent_one_named(pair):
    a, b, master = pair()
    b.say(stuck=pb.Stuck(reason="b/1 is stuck"))
    for one in (a, b):
        assert one.next("command").what == pb.Command.DUMP_STACKS
    a.say(flights=flights("a", w0=7, w1=7))
    b.say(flights=flights("b", w0=7, w1=6))
    subject, reason = wait_for_event(master, "silent")
    assert subject == "b/1"
    assert "in which 3 others wait" in reason


def test_node_that_does_not_answer_is_silent_itself(pair):
    a, b, master = pair()
    a.say(stuck=pb.Stuck(reason="a/0 is stuck"))
    a.say(flights=flights("a", w0=7, w1=7))
    subject, _ = wait_for_event(master, "silent", alive=(a, b))
    assert subject == "b/0, b/1"


# ---- time ----


def test_time_is_accounted_for_also_by_the_next_master(pair, job, agent):
    a, b, first = pair()
    a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, step=20))
    b.say(heartbeat=beat_of("b", {0: 0.1, 1: 0.1}, step=20))
    status = wait_for(first, lambda s: s.time.num_steps == 20)
    assert status.time.effective_s == pytest.approx(2.0)
    lost = sum(row.seconds for row in status.time.lost)
    assert status.time.effective_s + lost >= status.time.total_s - 1e-6
    total_s = status.time.total_s
    first.stop()
    second = job(node_timeout_s=1.0)
    assert status_of(second).time.total_s >= total_s
    # The ranks tell it again.
    workers = [worker("a", 0), worker("a", 1)]
    agent("a", workers=workers, master=second).say(
        heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, step=25)
    )
    wait_for(second, lambda s: s.time.num_steps == 25)


def test_last_words_of_a_worker_are_accounted_for(pair):
    a, b, master = pair()
    a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, step=18))
    wait_for(master, lambda s: s.time.num_steps == 18)
    account = pb.Account(epoch=1, last_step=20, last_sample=160, steps_s=2.0)
    for one in (a, b):
        one.report(
            *(
                (
                    f"{one.node}/{slot}",
                    slot,
                    {
                        "state": pb.WorkerReport.FINISHED,
                        "progress": pb.WorkerProgress(
                            name=f"{one.node}/{slot}", step=20, accounts=[account]
                        ),
                    },
                )
                for slot in (0, 1)
            )
        )
    status = wait_for(master, lambda s: s.ended)
    assert (status.time.num_steps, status.time.num_samples) == (20, 160)


# ---- for people and programs ----


@pytest.mark.extra
def test_metrics_are_served(tmp_path, agent):
    with Master(tmp_path / "own.db", metrics="127.0.0.1:0") as master:
        a = agent("a", master=master, min_workers=1)
        a.ready(0)
        a.world()
        a.say(heartbeat=beat_of("a", {0: 0.1}))
        a.say(alert=pb.Alert(kind="traffic", reason="x"))
        wait_for(master, lambda s: s.nodes[0].alerts and s.time.num_steps)
        url = f"http://{master.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=10) as reply:
            text = reply.read().decode()
    assert "drivetrain_elastic_up 1.0" in text
    assert 'drivetrain_elastic_worker_step{node="a",rank="0"} 10.0' in text
    assert 'drivetrain_elastic_node_alerts{node="a"} 1.0' in text
    assert "drivetrain_elastic_steps_total 10.0" in text


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999"])
def test_metrics_at_no_address_are_refused(tmp_path, address):
    with pytest.raises(ValueError, match="metrics"):
        Master(tmp_path / "own.db", metrics=address)


def test_live_table_shows_workers_alerts_and_events(pair):
    import io

    from rich.console import Console

    a, b, master = pair()
    a.say(heartbeat=beat_of("a", {0: 0.1, 1: 0.1}, number=0))
    b.say(heartbeat=beat_of("b", {0: 0.1, 1: 0.3}, number=0))
    a.say(alert=pb.Alert(kind="traffic", reason="nothing is sent"))
    wait_for(
        master,
        lambda s: (
            any(node.alerts for node in s.nodes)
            and any(w.slowness > 2 for node in s.nodes for w in node.workers)
        ),
    )
    out = io.StringIO()
    with MasterClient(master.address, master.token) as client:
        show_live(client, console=Console(file=out, width=160), num_times=1)
    text = out.getvalue()
    assert "world 1 of 4" in text
    assert "3.00x" in text
    assert "traffic" in text
    assert "node-joined a" in text


def test_live_table_of_a_master_that_is_gone_says_so(tmp_path):
    import io

    from rich.console import Console

    with Master(tmp_path / "own.db") as master:
        client = MasterClient(master.address, master.token, patience_s=0.1)
    out = io.StringIO()
    with client:
        show_live(client, console=Console(file=out, width=160), num_times=1)
    assert "no master answers" in out.getvalue()


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
    diagnoses = Diagnoses([])
    usual_s = diagnoses._config.window_s
    diagnoses.expect_hangs(600.0)
    assert diagnoses._config.window_s == usual_s
    diagnoses.expect_hangs(2400.0)
    assert diagnoses._config.window_s > 4 * 2400.0
    diagnoses.expect_hangs(float("inf"))
    assert diagnoses._config.window_s < float("inf")


def test_light_work_of_one_rank_is_no_straggler(pair):
    a, b, master = pair()

    def beat(node, outside_s, number):
        found = beat_of(node, {0: 0.05, 1: 0.05}, number=number)
        found.workers[0].window.sections_s["outside"] = outside_s
        found.workers[1].window.sections_s["outside"] = 0.0001
        return found

    for number in range(6):
        beats = beat("a", 0.004, number), beat("b", 0.0001, number)
        say_window(master, (a, b), beats)
    wait_for(
        master, lambda s: all(w.slowness for node in s.nodes for w in node.workers)
    )
    assert "straggler" not in [kind for kind, *_ in events_of(master)]


def test_work_between_steps_is_named_but_puts_no_node_out(pair, monkeypatch):
    monkeypatch.setattr("drivetrain_elastic._master._care._SLOW_S", 0.0)
    a, b, master = pair()
    for number in range(4):
        slow = beat_of("a", {0: 0.05, 1: 0.05}, number=number)
        slow.workers[0].window.sections_s["outside"] = 0.5
        slow.workers[1].window.sections_s["outside"] = 0.001
        fast = beat_of("b", {0: 0.05, 1: 0.05}, number=number)
        for one in fast.workers:
            one.window.sections_s["outside"] = 0.001
        say_window(master, (a, b), (slow, fast))
    subject, reason = wait_for_event(master, "straggler", alive=(a, b))
    assert (subject, "'outside'" in reason) == ("a/0", True)
    wait_for_event(master, "diagnosis", alive=(a, b))
    assert not status_of(master).excluded


def test_evaluation_between_steps_is_no_hang(agent):
    a = agent("a", min_workers=1)
    a.ready(0)
    a.world()
    watch = TrainingWatch()
    watch.enter(1, ["a/0"])
    one = pb.WorkerProgress(name="a/0", step=5, step_s=0.1, phase="between steps")
    watch.take([one])
    now_s = time.monotonic()
    assert watch.look(now_s + 100.0)[0] == ""
    assert watch.look(now_s + 400.0)[0].startswith("no step for 4")
    one.phase, one.step = "computing", 6
    watch.take([one])
    assert watch.look(time.monotonic() + 6.0)[0].startswith("no step for ")


def test_training_that_waits_for_workers_does_not_hang():
    watch = TrainingWatch(progress=ProgressConfig(floor_s=0.2))
    watch.enter(1, ["a/0"])
    watch.take([pb.WorkerProgress(name="a/0", step=5, step_s=0.01)])
    now_s = time.monotonic()
    watch.rest(now_s + 100.0)
    assert watch.look(now_s + 100.1)[0] == ""
    assert watch.look(now_s + 100.3)[0].startswith("no step for 0.3 s")


def test_who_waits_for_workers_says_so(pair):
    a, b, master = pair(min_workers=4)
    b.say(goodbye=pb.Goodbye(reason="left"))
    subject, reason = wait_for_event(master, "waits", alive=(a,))
    assert (subject, reason) == ("1", "2 workers are ready, of 4 at least")


def test_steps_that_leap_are_no_steps():
    watch = TrainingWatch()
    watch.enter(1, ["a/0"])
    for step in (5, 1 << 63, 6):
        watch.take([pb.WorkerProgress(name="a/0", step=step, step_s=0.1)])
    assert watch.step == 6


def test_job_that_gets_on_between_failures_goes_on_also_under_the_next_master():
    records = []
    first = Diagnoses(records)
    hang = Diagnosis(FailureClass.HANG, "stuck", "a", "x", "a/0")
    for at in range(9):
        first.add(hang._replace(worker=f"a/{at}"))
        first.judge(time.monotonic(), step=at * 100)
    second = Diagnoses([])
    assert all(second.replay(record) for record in records)
    second.add(hang._replace(worker="a/x"))
    (judged,), _ = second.judge(time.monotonic(), step=1000)
    assert judged.gets_on
    second.add(hang._replace(worker="a/y"))
    (judged,), _ = second.judge(time.monotonic(), step=1000)
    assert not judged.gets_on


def test_ended_job_keeps_its_ledger_for_the_next_master():
    records = []
    first = TimeKeeper(records, lambda _: "")
    first.begin()
    first.enter(1, ["a"], [], "start", [])
    account = pb.Account(epoch=1, last_step=10, last_sample=80, steps_s=1e-4)
    first.take([pb.WorkerProgress(name="a", accounts=[account])])
    first.end()
    ledger = first.ledger()
    second = TimeKeeper([], lambda _: "")
    for record in records:
        assert second.replay(record)
    assert second.ledger().num_steps == ledger.num_steps == 10
    assert second.ledger().num_samples == ledger.num_samples == 80
    assert second.ledger().total_s == pytest.approx(ledger.total_s, abs=1e-3)


def test_times_that_nobody_has_are_bounded():
    keeper = TimeKeeper([], lambda _: "")
    keeper.begin()
    keeper.enter(1, ["a", "b"], [], "start", [])
    for name in "ab":
        account = pb.Account(epoch=1, steps_s=1.7e308, forming_s=1.7e308)
        keeper.take([pb.WorkerProgress(name=name, accounts=[account])])
    assert keeper.ledger().effective_s < 1e11
