"""A search as it happens on a recorded space, beside the best plans of the record.

The chosen plan, the three best recorded ones and the program as written run in turns, so
that a slow minute of the machine hits all.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from replay import FOLDER, fastest, recorded

from drivetrain_core import accelerate
from drivetrain_core._plan import describe
from drivetrain_search.process.payload import Payload, write_payload
from drivetrain_search.process.trial import TrialRunner
from drivetrain_testing import Row

NAME = "convolutions"
BEST, DRY_RUNS = 0.95, 24
STEPS, SECONDS, TURNS = 6, 1.0, 4


def cold_cache(stack):
    """Gives Inductor an empty cache, as on a fresh machine."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="inductor-"))
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder

    def restore():
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        if before is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before

    stack.callback(restore)


def searched(space):
    program = space.program
    begin = time.monotonic()
    accelerated = accelerate(
        program.model,
        program.optimizer,
        program.data,
        program.loss,
        strategy={name: list(values) for name, values in open_values(space)},
        budget={"seconds": 600, "trials": DRY_RUNS},
        progress=False,
        cache=False,
    )
    return accelerated, time.monotonic() - begin


def open_values(space):
    """Returns a space's values as a user writes them in a partial strategy."""
    for name, values in space.values:
        yield name, [{} if value is None else value for value in values]


def runner_of(space, context, folder):
    data = list(space.program.data)[:3] if isinstance(space.program.data, list) else []
    payload = Payload(
        program=space.program,
        context=context,
        guard_batches=tuple(data),
        device="cpu",
    )
    return TrialRunner(
        payload=write_payload(payload, folder),
        folder=folder,
        world_size=1,
        on_cpu=True,
        timeout_s=300.0,
    )


def in_turns(runner, plans):
    """Median samples a second of each plan, all alive, measured in turns."""
    times = {plan: [] for plan in plans}
    with ExitStack() as stack:
        sessions = {
            plan: stack.enter_context(runner.open(plan, baseline=False))
            for plan in plans
        }
        for turn in range(TURNS):
            order = plans if turn % 2 == 0 else plans[::-1]
            for plan in order:
                measured = sessions[plan].measure(STEPS, SECONDS)
                times[plan].extend(measured.step_times_s)
    size = measured.samples_per_step
    return {plan: size / statistics.median(steps) for plan, steps in times.items()}


def measure(quick):
    """The speed of the plan that a live search chooses over the best recorded one's."""
    if quick:
        return Row(figure="takes longer than the quick form", holds=None)
    if not (FOLDER / f"{NAME}.json").exists():
        return Row(figure=f"{NAME} is not recorded", holds=None)
    space, context, records = recorded(NAME)
    by_name = {describe(plan): plan for plan in space.plans(context)}
    best = [by_name[name] for name in fastest(records, 3)]
    with ExitStack() as stack:
        cold_cache(stack)
        accelerated, seconds = searched(space)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="live-"))
        runner = runner_of(space, context, Path(folder))
        chosen = tuple(accelerated.plan.choices)
        speed = in_turns(runner, list(dict.fromkeys([(), chosen, *best])))
    top = max(best, key=speed.__getitem__)
    share, trials = speed[chosen] / speed[top], len(accelerated.report.trials)
    return Row(
        figure=f"{share:.3f} ({describe(chosen)}; best of {len(records)}: "
        f"{describe(top)}), {speed[chosen] / speed[()]:.2f}x the program as written, "
        f"{trials} dry runs, {seconds:.0f} s from a cold start",
        holds=share >= BEST and trials <= DRY_RUNS,
        details={"speed": {describe(plan): value for plan, value in speed.items()}},
    )
