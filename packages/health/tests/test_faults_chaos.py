"""Chaos is the same for a seed, spares who is hit already, and heals all it began."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_health.cli import main
from drivetrain_health.faults import (
    Chaos,
    ChaosSpec,
    TargetGoneError,
    plan_chaos,
)
from drivetrain_health.faults._chaos import Player
from drivetrain_health.faults._chaos_plan import strikes
from drivetrain_testing import exit_status

ending = partial(exit_status, main)

KINDS = st.dictionaries(
    st.sampled_from(["kill", "stop", "slow", "flood"]),
    st.floats(0, 10),
    min_size=1,
).filter(lambda kinds: sum(kinds.values()) > 0)


@st.composite
def specs(draw):
    least_s = draw(st.floats(0, 20))
    return ChaosSpec(
        seed=draw(st.integers(0, 1000)),
        num_targets=draw(st.integers(1, 5)),
        every_s=draw(st.floats(0.01, 10)),
        kinds=draw(KINDS),
        lasts_s=(least_s, least_s + draw(st.floats(0, 20))),
    )


@given(spec=specs(), num=st.integers(0, 60))
def test_plan_is_that_of_its_seed_and_hits_no_target_twice_at_once(spec, num):
    plan = plan_chaos(spec, num)
    assert plan == plan_chaos(spec, num + 5)[:num]
    assert [one.at_s for one in plan] == sorted(one.at_s for one in plan)
    least_s, most_s = spec.lasts_s
    until_s = {}
    for one in plan:
        assert spec.kinds[one.kind] > 0
        assert 0 <= one.severity < 1
        assert one.kind == "kill" or least_s <= one.lasts_s <= most_s
        assert until_s.get(one.slot, 0.0) <= one.at_s
        until_s[one.slot] = one.at_s + one.lasts_s
    assert set(until_s) <= set(range(spec.num_targets))


def test_plan_has_the_rate_and_the_kinds_that_were_asked_for():
    kinds = {"kill": 1.0, "stop": 3.0}
    spec = ChaosSpec(seed=5, num_targets=1000, every_s=2.0, kinds=kinds)
    plan = plan_chaos(spec, 4000)
    assert plan[-1].at_s / 4000 == pytest.approx(2.0, rel=0.1)
    num_stops = sum(one.kind == "stop" for one in plan)
    assert num_stops / 4000 == pytest.approx(0.75, rel=0.1)
    assert plan != plan_chaos(ChaosSpec(seed=6, num_targets=1000, every_s=2.0), 4000)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_targets": 0},
        {"every_s": 0.0},
        {"kinds": {}},
        {"kinds": {"kill": 0.0}},
        {"kinds": {"kill": 2.0, "stop": -1.0}},
        {"lasts_s": (2.0, 1.0)},
        {"lasts_s": (-1.0, 1.0)},
    ],
)
def test_spec_says_what_is_out_of_range(changes):
    with pytest.raises(ProgramError, match=next(iter(changes))):
        ChaosSpec(**{"seed": 0, "num_targets": 2, "every_s": 1.0, **changes})


class Patient:
    """Targets on which every kind of fault is written down; some are gone."""

    def __init__(self, gone=()):
        self.gone = gone
        self.ill = []
        self.history = []

    @contextmanager
    def act(self, target, strike):
        if target in self.gone:
            raise TargetGoneError(f"{target} has ended")
        assert target not in self.ill
        self.ill.append(target)
        self.history.append(target)
        try:
            yield
        finally:
            self.ill.remove(target)


@given(
    spec=specs(),
    steps=st.lists(st.floats(0, 30), max_size=20),
    gone=st.sets(st.integers(0, 4)),
    num_there=st.integers(0, 5),
)
@settings(deadline=None)
def test_player_heals_all_that_it_began_in_any_time(spec, steps, gone, num_there):
    patient = Patient(gone)
    player = Player(
        strikes(spec),
        lambda: list(range(num_there)),
        dict.fromkeys(spec.kinds, patient.act),
    )
    now_s = 0.0
    for step_s in steps:
        now_s += min(step_s, 100 * spec.every_s)
        due_s = player.advance(now_s)
        assert due_s > now_s
        going = {one.target for one in player.log if one.what == "begun"}
        assert set(patient.ill) <= going
    player.close(now_s)
    assert patient.ill == []
    num_begun = sum(one.what == "begun" for one in player.log)
    assert num_begun == len(patient.history)
    lasting = [o for o in player.log if o.what == "begun" and o.strike.lasts_s]
    assert len(lasting) == sum(one.what == "healed" for one in player.log)
    hits = [one.strike for one in player.log if one.what != "healed"]
    assert hits == plan_chaos(spec, len(hits))
    for one in player.log:
        if one.what == "skipped":
            assert one.strike.slot >= num_there or one.target in gone


def test_player_spares_a_target_under_a_fault_when_places_change():
    patient, targets = Patient(), ["a"]
    spec = ChaosSpec(
        seed=0, num_targets=3, every_s=1.0, kinds={"flood": 1}, lasts_s=(50, 50)
    )
    player = Player(strikes(spec), lambda: targets * 3, {"flood": patient.act})
    player.advance(plan_chaos(spec, 3)[-1].at_s)
    assert patient.history == ["a"]
    assert [one.reason for one in player.log] == ["", *["another fault goes on"] * 2]


@contextmanager
def broken(target, strike):
    yield
    raise OSError(f"{target} cannot be healed")


def test_close_heals_the_rest_when_one_cannot_be_healed():
    patient = Patient()
    kinds = {"bad": 1.0, "good": 1.0}
    spec = ChaosSpec(
        seed=1, num_targets=4, every_s=0.1, kinds=kinds, lasts_s=(90.0, 99.0)
    )
    player = Player(
        strikes(spec), lambda: range(4), {"bad": broken, "good": patient.act}
    )
    player.advance(plan_chaos(spec, 4)[-1].at_s)
    assert {one.strike.kind for one in player.log} == set(kinds)
    with pytest.raises(OSError, match="cannot be healed"):
        player.close(90.0)
    assert patient.ill == []


def sleepers(num):
    return [subprocess.Popen(["sleep", "600"]) for _ in range(num)]


def state(process):
    text = Path(f"/proc/{process.pid}/stat").read_text()
    return text.rpartition(")")[2].split()[0]


def test_chaos_hits_processes_and_heals_them_after_an_error():
    workers = sleepers(2)
    spec = ChaosSpec(
        seed=0, num_targets=2, every_s=0.01, kinds={"stop": 1}, lasts_s=(60, 60)
    )
    with suppress(ZeroDivisionError), Chaos(workers, spec) as chaos:
        end_s = time.monotonic() + 60
        while [state(one) for one in workers] != ["T", "T"]:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        raise ZeroDivisionError
    assert "T" not in [state(one) for one in workers]
    assert [one.what for one in chaos.log] == ["begun", "begun", "healed", "healed"]
    assert {one.target for one in chaos.log} == set(workers)
    for worker in workers:
        worker.kill()
        worker.wait()


def test_chaos_raises_what_a_fault_has_failed_with():
    spec = ChaosSpec(
        seed=0, num_targets=1, every_s=0.001, kinds={"bad": 1}, lasts_s=(0.0, 0.0)
    )
    with (
        pytest.raises(OSError, match="cannot be healed"),
        Chaos(["x"], spec, acts={"bad": broken}) as chaos,
    ):
        assert chaos.wait(60)
    with pytest.raises(ProgramError, match="kill, slow, stop, not bad: pass acts="):
        Chaos(["x"], spec)


PARENT = """
import subprocess
workers = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
print(*(worker.pid for worker in workers), flush=True)
for worker in workers:
    worker.wait()
"""


def test_command_makes_chaos_among_the_children_of_a_process(capsys):
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT], stdout=subprocess.PIPE, text=True
    )
    pids = {int(pid) for pid in parent.stdout.readline().split()}
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    words = ["faults", "chaos", str(parent.pid), "--every-s", "0.05", "--json"]
    assert ending([*words, "--kinds", "kill,fire"]) == 2
    assert "--kinds: takes kill, slow, stop, with commas" in capsys.readouterr().err
    assert main([*words, "--kinds", "kill", "--for-s", "20"]) == 0
    # It ends with the parent, which ends with its children.
    assert parent.wait(60) == 0
    parent.stdout.close()
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["target"] for line in lines if line["what"] == "begun"} == pids
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_command_says_that_chaos_hits_no_process_but_children(capsys):
    (worker,) = sleepers(1)
    words = ["faults", "chaos", str(worker.pid), "--every-s", "0.05", "--for-s", "1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f" of a child of {worker.pid}: there are 0 targets\n" in out
    assert worker.poll() is None
    worker.kill()
    worker.wait()


def test_commands_kill_stop_and_slow(capsys):
    worker, other = sleepers(2)
    for words in (["stop"], ["stop", "--tree"], ["slow", "--share", "0.5"]):
        assert main(["faults", *words, str(worker.pid), "--for-s", "0.05"]) == 0
        assert capsys.readouterr().out.endswith("healed\n")
        assert worker.poll() is None
    assert main(["faults", "kill", "--signal", "term", str(worker.pid)]) == 0
    assert worker.wait() == -signal.SIGTERM
    assert main(["faults", "kill", str(worker.pid)]) == 1
    assert "has ended" in capsys.readouterr().err
    assert ending(["faults", "kill", "--signal", "fire", str(other.pid)]) == 2
    assert "there is no signal fire" in capsys.readouterr().err
    assert main(["faults", "kill", str(os.getpid())]) == 1
    other.kill()
    other.wait()


def test_command_heals_when_a_signal_ends_it():
    worker = sleepers(1)[0]
    words = ["-m", "drivetrain_health.cli", "faults", "stop", str(worker.pid)]
    command = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True
    )
    assert command.stdout.readline() == f"process {worker.pid} is stopped\n"
    assert state(worker) == "T"
    command.terminate()
    assert command.wait(60) == 0
    command.stdout.close()
    assert state(worker) != "T"
    worker.kill()
    worker.wait()


def test_gaps_are_not_all_alike():
    spec = ChaosSpec(seed=2, num_targets=100, every_s=1.0)
    times = [one.at_s for one in plan_chaos(spec, 50)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len({math.floor(gap * 1e6) for gap in gaps}) > 40
