"""Searches replayed on the recorded spaces, beside random search and the best plan.

The search is the real one from end to end; only the processes of its trials are
replaced by the records of `spaces/`, and the clock by the time that these took. A trial
is one of the runs that were recorded of a plan, its steps drawn anew, so that the five
searches of a space see different noise. All times are corrected for the speed of the
machine, by the steps that the program as written took before and after.

Two processes of one plan differ by some percent, so that the best of many plans is partly
the luckiest. The best plans were therefore recorded in several sets of processes: one half
of the sets says which plan is the best, and the other half by how much it beats the one
that was chosen; that over every way to halve them.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from reference_spaces import SPACES

from drivetrain_core import Measurement
from drivetrain_core._compose import complete
from drivetrain_core._errors import Code
from drivetrain_core._plan import describe
from drivetrain_core.budget import Budget
from drivetrain_core.numerics.observation import FIRST_STEPS, Observation
from drivetrain_search.options import SearchOptions
from drivetrain_search.process.pace import passes_within
from drivetrain_search.process.trial import Failure, Look, Outrun
from drivetrain_search.progress import SilentProgress
from drivetrain_search.run import Search
from drivetrain_search.stopping import is_outrun
from drivetrain_search.trials import Trials
from drivetrain_testing import Row

FOLDER = Path(__file__).parent / "spaces"
MEAN, WORST, DRY_RUNS, SHARE = 0.98, 0.95, 24, 0.05
SEARCHES, LARGE = 5, 500
# Of what a plan's first set-up takes beyond the program's own, a later one takes this part.
AGAIN = 0.3
SHORT_LOOK = Look()
SEEN = Observation(
    losses=(1.0,), norms={"w": 1.0}, samples={"w": (1.0,)}, moved=frozenset({"w"})
)


@dataclass
class Tape:
    """What a replayed search has asked of the records."""

    plans: dict
    draw: random.Random
    seconds: float = 0.0
    asked: set = field(default_factory=set)

    def now(self):
        return self.seconds

    def spend(self, seconds, deadline):
        """Lets time pass; at the deadline what runs is broken off, as it is in a search."""
        self.seconds += seconds
        if deadline is not None and self.seconds > deadline:
            self.seconds = deadline
            raise Failure(Code.BUDGET, "the time is over")


@dataclass(frozen=True)
class RecordedRunner:
    """Stands in for `TrialRunner`: answers from the records, slowed down if asked.

    The passes of an observation take the time of as many steps.
    """

    tape: Tape
    samples: int
    slowdown: float = 1.0
    world_size: int = 1
    timeout_s: float = 60.0
    is_strict: bool = False
    warm_steps: int = 3
    on_cpu: bool = True

    @contextmanager
    def open(self, choices, *, baseline=False, look=SHORT_LOOK, deadline=None):
        found = self.tape.plans[describe(choices)]
        setup_s = found.get("setup_s", found["seconds"])
        if choices in self.tape.asked:
            # What was compiled is found in the cache.
            first_s = self.tape.plans["baseline"]["setup_s"]
            setup_s = min(setup_s, first_s) + AGAIN * max(0.0, setup_s - first_s)
        self.tape.asked.add(choices)
        self.tape.spend(self.slowdown * setup_s, deadline)
        if "error" in found:
            raise Failure(Code.ERROR, found["error"])
        session = RecordedSession(
            self.tape,
            found,
            self.samples,
            tuple(self.slowdown * step for step in chosen_run(self.tape, found)),
            self.slowdown,
            deadline,
        )
        session.observe(self.passes(session, look, baseline), look)
        yield session

    def passes(self, session, look, baseline):
        if look is None:
            return self.warm_steps
        if not baseline:
            return look.steps + 1
        left_s = look.until_s - self.tape.seconds - FIRST_STEPS * session.step_s
        number = max(left_s, 0.0) / session.step_s
        whole = passes_within(number, has_dropout=False, may_sway=True)
        swayed = whole.steps if whole.is_swayed else 0
        return whole.steps + swayed + whole.noise + 1 + whole.counts_flops


@dataclass(frozen=True)
class RecordedSession:
    """Stands in for a trial's `Session`."""

    tape: Tape
    found: dict
    samples: int
    run: tuple
    slowdown: float
    deadline: float | None
    observation: Observation = SEEN

    @property
    def step_s(self):
        return quiet(self.run)

    @property
    def setup_s(self):
        return self.slowdown * self.found["setup_s"]

    def observe(self, passes, look):
        """Takes as many steps, or fewer where a plan is slower than the best for sure."""
        steps = []
        for _ in range(passes):
            steps.append(self.tape.draw.choice(self.run))
            self.tape.spend(steps[-1], self.deadline)
            seen = steps[1:FIRST_STEPS]
            if look is None or look.outrun_above_s is None or len(steps) > FIRST_STEPS:
                continue
            if is_outrun(seen, look.outrun_above_s, look.noise):
                raise Outrun(seen, self.found["peak_mib"] << 20)

    def measure(self, min_steps, min_seconds):
        steps = []
        while len(steps) < min_steps or sum(steps) < min_seconds:
            steps.append(self.tape.draw.choice(self.run))
        self.tape.spend(sum(steps), self.deadline)
        return Measurement(
            step_times_s=tuple(steps),
            samples_per_step=self.samples,
            peak_memory_bytes=self.found["peak_mib"] << 20,
            data_share=self.found["data_share"],
            optimizer_share=self.found["optimizer_share"],
            setup_s=self.slowdown * self.found["setup_s"],
        )


class NoForesight:
    """Foresees nothing: what it prunes is measured elsewhere."""

    def calibrate(self, baseline, measurement):
        pass

    def in_order(self, space, base):
        return space

    def skip_reason(self, choices, best_s):
        return None

    def of_trials(self, records):
        return {}


@functools.cache
def recorded(name):
    space = SPACES[name]()
    plans = json.loads((FOLDER / f"{name}.json").read_text())["plans"]
    anchors = [
        time
        for found in plans.values()
        for run in found.get("runs", [])
        for bout in run
        for time in bout["anchor_s"]
    ]
    usual_s = statistics.median(anchors)
    for found in plans.values():
        found["runs"] = [
            [
                step * usual_s / min(bout["anchor_s"])
                for bout in run
                for step in bout["steps_s"]
            ]
            for run in found.get("runs", [])
        ]
    return space, space.context(), plans


def chosen_run(tape, found):
    return tuple(tape.draw.choice(found["runs"]))


def usual_s(found, sets):
    """A plan's usual step in some of the sets, or in its only run."""
    runs = found["runs"]
    if len(runs) > 1:
        # Plans that are not among the best have fewer.
        runs = [runs[1 + index] for index in sets if 1 + index < len(runs)] or runs
    if not runs:
        return math.inf
    return statistics.geometric_mean(map(statistics.median, runs))


def num_sets(plans):
    return max(len(found["runs"]) for found in plans.values()) - 1


def fastest(plans, number):
    """The names of the fastest plans, by all of their sets."""
    sets = range(num_sets(plans))
    return sorted(plans, key=lambda name: usual_s(plans[name], sets))[:number]


def share_of_best(plans, choices):
    """The speed of a plan over that of the best, found and judged on different sets."""
    shares, sets = [], range(num_sets(plans))
    for finds in itertools.combinations(sets, len(sets) // 2):
        judges = [index for index in sets if index not in finds]
        best = min(plans.values(), key=lambda found: usual_s(found, finds))
        mine = plans[describe(choices)]
        shares.append(usual_s(best, judges) / usual_s(mine, judges))
    return statistics.mean(shares)


def searched(name, seed, *, seconds=None, slowdown=1.0):
    """Returns one replayed search: share of the best, dry runs, seconds.

    Args:
        name: The space.
        seed: Of the noise.
        seconds: Its budget; by default that of the bar.
        slowdown: How many times as slow as the recorded machine this one is.
    """
    space, context, plans = recorded(name)
    tape = Tape(plans, random.Random(seed))
    options = SearchOptions(
        budget=Budget(seconds=seconds or seconds_for(plans), trials=DRY_RUNS),
        given=space.candidates(),
        allow=(),
    )
    runner = RecordedRunner(tape, context.batch.size, slowdown)
    # The records are corrected for the machine's speed as they are read.
    trials = Trials(runner, options, SilentProgress(), None, 0.0, memory_bytes=0)
    written = complete((), context)
    with mock.patch("time.monotonic", tape.now):
        _, report = Search(context, written, options, trials, NoForesight(), 0.0).run()
    return report.chosen, report, tape


def seconds_for(plans):
    """The time that a search gets: of a large space its bound, else as many as it likes."""
    return SHARE * sweep_s(plans) if len(plans) >= LARGE else 10_000.0


def sweep_s(plans):
    return sum(found["seconds"] for found in plans.values())


def quiet(steps):
    return Measurement(step_times_s=tuple(steps), samples_per_step=1).quiet_step_time_s


def random_search(name, number, seed):
    """The best of as many random plans, judged as the search judges."""
    space, context, plans = recorded(name)
    draw = random.Random(1000 + seed)
    every = space.plans(context)
    tried = [every[0], *draw.sample(every[1:], number - 1)]
    scores = {}
    for plan in tried:
        runs = plans[describe(plan)]["runs"]
        if runs:
            scores[plan] = 1.0 / quiet(draw.choice(runs))
    return share_of_best(plans, max(scores, key=scores.__getitem__))


def replayed(name):
    """Five searches of one space."""
    shares, randoms, dry, seconds = [], [], [], []
    _, _, plans = recorded(name)
    for seed in range(SEARCHES):
        chosen, report, tape = searched(name, seed)
        shares.append(share_of_best(plans, chosen))
        dry.append(len(report.trials))
        seconds.append(tape.seconds)
        randoms.append(random_search(name, dry[-1], seed))
    return {
        "plans": len(plans),
        "mean": statistics.mean(shares),
        "worst": min(shares),
        "random_mean": statistics.mean(randoms),
        "dry_runs": max(dry),
        "time_share": max(seconds) / sweep_s(plans),
        "speedup": 1.0 / share_of_best(plans, ()),
    }


def measure(quick):
    """The chosen plan's speed over the best recorded one's, in all spaces."""
    del quick
    missing = [name for name in SPACES if not (FOLDER / f"{name}.json").exists()]
    found = {name: replayed(name) for name in SPACES if name not in missing}
    mean = statistics.mean(space["mean"] for space in found.values())
    worst = min(space["worst"] for space in found.values())
    large = [space for space in found.values() if space["plans"] >= LARGE]
    holds = (
        not missing
        and all(space["mean"] >= MEAN for space in found.values())
        and worst >= WORST
        and all(space["dry_runs"] <= DRY_RUNS for space in found.values())
        and len(large) >= 1
        and all(space["time_share"] <= SHARE for space in large)
        and all(space["mean"] > space["random_mean"] for space in found.values())
    )
    parts = "; ".join(
        f"{name}: {space['mean']:.3f} on average, {space['worst']:.3f} at worst, of "
        f"{space['plans']} plans, {space['dry_runs']} dry runs, "
        f"{space['time_share']:.1%} of the sweep's time, random search "
        f"{space['random_mean']:.3f}"
        for name, space in found.items()
    )
    parts += f"; not recorded: {', '.join(missing)}" if missing else ""
    return Row(figure=f"{mean:.3f} on average ({parts})", holds=holds, details=found)


if __name__ == "__main__":
    import sys

    names = sys.argv[1:] or list(SPACES)
    for name in names:
        print(name, json.dumps({k: round(v, 4) for k, v in replayed(name).items()}))
