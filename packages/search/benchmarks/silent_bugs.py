"""Plans with a silent bug, every one of which the numerical guard must catch.

Beside them run healthy plans, none of which may be rejected. The quick form judges in
this process and in two ranks; the whole runs every plan in trials, as a search does.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import torch
from guarded_programs import (
    choices_of,
    counting,
    judged,
    look,
    on_rank,
    payload_of,
    programs,
)
from planted_bugs import BESIDE, BUGS
from planted_rank_bugs import HEALTHY_ON_RANKS, RANK_BUGS

from drivetrain_core import register, unregister
from drivetrain_core._choice import Reject
from drivetrain_core._compose import complete, numerics_of
from drivetrain_core._errors import PlanError
from drivetrain_core.numerics.guard import compare
from drivetrain_search.process.payload import write_payload
from drivetrain_search.process.trial import Failure, TrialRunner
from drivetrain_search.verify import verify
from drivetrain_testing import Row, run_ranks

HEALTHY = (
    [],
    [("precision", "bf16_autocast")],
    [("precision", "bf16_params")],
    [("micro_batch", 4)],
    [("micro_batch", 3), ("precision", "bf16_params")],
    ["activation_checkpoint"],
    ["channels_last"],
    [("optimizer_impl", "fused"), ("precision", "bf16_autocast")],
    [("optimizer_impl", "foreach")],
    ["data_loading"],
    ["cpu_threads"],
    ["host_allocator"],
)
"""Plans without a bug."""

COMPILED = (
    [("compile", "whole")],
    [("compile", "whole"), ("precision", "bf16_params")],
)
"""More of them, which take longer."""


def planted():
    """Yields a title, a program's name, the bug or None, and the plan of each case."""
    for name, bug in BUGS:
        yield f"{name}: {bug.name}", name, bug, [bug.name]
    for name, bug, beside in BESIDE:
        plan = [beside] if bug is None else [beside, bug.name]
        yield f"{name}: {' + '.join(plan)}", name, bug, plan


@contextlib.contextmanager
def registered(*bugs):
    for bug in bugs:
        register(bug)
    try:
        yield
    finally:
        for bug in bugs:
            unregister(bug.name)


def every_program():
    return {**programs(), "counting": counting()}


def answers_here():
    """The guard's answer to each case, in this process; healthy ones in the second."""
    payloads = {name: payload_of(p) for name, p in every_program().items()}
    references = {n: look(p, (), baseline=True) for n, p in payloads.items()}
    wrong, right = {}, {}
    for title, name, bug, plan in planted():
        with registered(*([bug] if bug else [])):
            choices = choices_of(plan, payloads[name].context)
            wrong[title] = judged(payloads[name], choices, references[name])
    for name, payload in payloads.items():
        for plan in HEALTHY if name != "counting" else ():
            with contextlib.suppress(PlanError):
                choices = choices_of(plan, payload.context)
                title = f"{name}: {plan}"
                right[title] = judged(payload, choices, references[name])
    return wrong, right


def answers_of_rank():
    """The same for several ranks; called on each of them."""
    torch.set_num_threads(1)
    payload = on_rank(payload_of(programs()["residual"]))
    reference = look(payload, complete((), payload.context), baseline=True)
    wrong, right = {}, {}
    with registered(*RANK_BUGS):
        for bug in RANK_BUGS:
            choices = choices_of([bug.name], payload.context)
            wrong[f"2 ranks: {bug.name}"] = judged(payload, choices, reference)
        for plan in HEALTHY_ON_RANKS:
            choices = choices_of(plan, payload.context)
            right[f"2 ranks: {plan}"] = judged(payload, choices, reference)
    return wrong, right


def in_trials(payload, plans, world_size=1):
    """The answers to some plans of a program, in trials as a search runs them."""
    with tempfile.TemporaryDirectory(prefix="silent-bugs-") as name:
        folder = Path(name)
        runner = TrialRunner(
            payload=write_payload(payload, folder),
            folder=folder,
            world_size=world_size,
            on_cpu=True,
            timeout_s=120.0,
        )
        deadline = time.monotonic() + 3600.0
        with runner.open(complete((), payload.context), baseline=True) as session:
            reference = session.observation
        return {
            title: _in_trial(runner, choices, reference, deadline)
            for title, choices in plans.items()
        }


def _in_trial(runner, choices, reference, deadline):
    try:
        with runner.open(choices, baseline=False) as session:
            answer = compare(reference, session.observation, numerics_of(choices))
    except Failure as failure:
        return Reject(failure.code, failure.because)
    if isinstance(answer, Reject):
        return answer
    return verify(runner, choices, reference, deadline=deadline)


def measure(quick):
    """How many of the bugs are caught, and how many healthy plans pass."""
    wrong, right = answers_here() if quick else answers_in_trials()
    if quick:
        more = run_ranks(answers_of_rank, 2)[0]
        wrong, right = {**wrong, **more[0]}, {**right, **more[1]}
    caught = [title for title, answer in wrong.items() if isinstance(answer, Reject)]
    passed = [t for t, answer in right.items() if not isinstance(answer, Reject)]
    answers = {**wrong, **right}
    return Row(
        figure=f"{len(caught)} of {len(wrong)} caught, {len(passed)} of {len(right)} "
        "healthy plans pass",
        holds=len(caught) == len(wrong) and len(passed) == len(right),
        details={
            title: getattr(answer, "because", "") for title, answer in answers.items()
        },
    )


def answers_in_trials():
    wrong, right = {}, {}
    payloads = {name: payload_of(p) for name, p in every_program().items()}
    bugs = {bug.name: bug for _, _, bug, _ in planted() if bug}
    with registered(*bugs.values(), *RANK_BUGS):
        for name, payload in payloads.items():
            cases = {
                title: choices_of(plan, payload.context)
                for title, of, _, plan in planted()
                if of == name
            }
            healthy = {}
            for plan in (*HEALTHY, *COMPILED) if name != "counting" else ():
                with contextlib.suppress(PlanError):
                    healthy[f"{name}: {plan}"] = choices_of(plan, payload.context)
            answers = in_trials(payload, {**cases, **healthy})
            wrong |= {title: answers[title] for title in cases}
            right |= {title: answers[title] for title in healthy}
        ranks = on_rank(payloads["residual"], size=2)
        cases = {
            f"2 ranks: {bug.name}": choices_of([bug.name], ranks.context)
            for bug in RANK_BUGS
        }
        healthy = {
            f"2 ranks: {plan}": choices_of(plan, ranks.context)
            for plan in HEALTHY_ON_RANKS
        }
        answers = in_trials(ranks, {**cases, **healthy}, world_size=2)
        wrong |= {title: answers[title] for title in cases}
        right |= {title: answers[title] for title in healthy}
    return wrong, right
