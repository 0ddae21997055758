"""Who is late, slow or silent, and when nobody hangs."""

import time

import pytest
from fake_agent import (
    beat_of,
    events_of,
    say_window,
    status_of,
    wait_for,
    wait_for_event,
)

from drivetrain_elastic._master._progress_monitor import ProgressMonitor
from drivetrain_elastic.decisions.progress import ProgressConfig
from drivetrain_elastic.protocol import messages as pb


@pytest.mark.slow
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


@pytest.mark.slow
def test_straggler_is_named_and_its_node_excluded_if_others_can_go_on(
    pair, monkeypatch
):
    monkeypatch.setattr("drivetrain_elastic._master._fault_manager._SLOW_S", 0.1)
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


@pytest.mark.slow
def test_node_that_does_not_answer_is_silent_itself(pair):
    a, b, master = pair()
    a.say(stuck=pb.Stuck(reason="a/0 is stuck"))
    a.say(flights=flights("a", w0=7, w1=7))
    subject, _ = wait_for_event(master, "silent", alive=(a, b))
    assert subject == "b/0, b/1"


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
    monkeypatch.setattr("drivetrain_elastic._master._fault_manager._SLOW_S", 0.0)
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


@pytest.mark.parametrize("phase", ["between steps", "ending"])
def test_evaluation_between_steps_or_after_them_is_no_hang(agent, phase):
    a = agent("a", min_workers=1)
    a.ready(0)
    a.world()
    watch = ProgressMonitor()
    watch.enter(1, ["a/0"])
    one = pb.WorkerProgress(name="a/0", step=5, step_s=0.1, phase=phase)
    watch.take([one])
    now_s = time.monotonic()
    assert watch.look(now_s + 100.0)[0] == ""
    assert watch.look(now_s + 400.0)[0].startswith("no step for 4")
    one.phase, one.step = "computing", 6
    watch.take([one])
    assert watch.look(time.monotonic() + 6.0)[0].startswith("no step for ")


def test_training_that_waits_for_workers_does_not_hang():
    watch = ProgressMonitor(progress=ProgressConfig(floor_s=0.2))
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
    watch = ProgressMonitor()
    watch.enter(1, ["a/0"])
    for step in (5, 1 << 63, 6):
        watch.take([pb.WorkerProgress(name="a/0", step=step, step_s=0.1)])
    assert watch.step == 6
