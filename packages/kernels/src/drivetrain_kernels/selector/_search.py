"""The stages of a search: eager's measure, candidates one by one, the race."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.selector._blocks import repeated_blocks
from drivetrain_kernels.selector._candidates import (
    EAGER,
    Candidate,
    Installed,
    candidates_for,
)
from drivetrain_kernels.selector._compiled import first_line
from drivetrain_kernels.selector._decide import (
    MIN_GAIN,
    Trial,
    decide,
    whole_compile_s,
    worth_compiling,
)
from drivetrain_kernels.selector._probe import Probe, probe, synchronize
from drivetrain_kernels.selector._race import race
from drivetrain_kernels.selector._ranks import agreed_trials
from drivetrain_kernels.selector._state_snapshot import require_unchanged_values
from drivetrain_kernels.selector._store import Record, fingerprint
from drivetrain_kernels.selector._verify import difference, reference_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import distributed as dist
    from torch import nn

    from drivetrain_kernels.selector._verify import Reference
    from drivetrain_kernels.selector._workload import Workload

_SAMPLE_S = 0.005  # a sample runs at least this long, or a clock's tick would show
_RACE_SHARE = 0.35  # of the budget is kept for timing
_FIRST_COMPILE_S = 3.0  # what the smallest model takes, and then by module
_COMPILE_S_PER_MODULE = 0.15
_AGAIN = 0.7  # of the time of the last compilation, when the whole compiles again


@dataclass(kw_only=True)
class Search:
    """The stages of one call of `select`."""

    workload: Workload
    named: bool
    deadline: float
    budget_s: float
    remaining_steps: int | None
    tolerance: float | None
    group: dist.ProcessGroup | None
    progress: Callable[[str], None]
    eager_s: float = 0.0
    whole_compile_s: float = 0.0
    trials: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the numbers."""
        steps, tolerance = self.remaining_steps, self.tolerance
        if steps is not None and steps < 0:
            message = f"remaining_steps must be >= 0 or None, got {steps}"
            raise SelectionError(message)
        if tolerance is not None and not tolerance > 0:
            message = f"tolerance must be > 0 or None, got {tolerance}"
            raise SelectionError(message)
        self.compile_until = self.deadline - _RACE_SHARE * self.budget_s

    def key(self, names: Sequence[str]) -> str:
        """Returns what the decision is kept under."""
        ranks = 1 if self.group is None else self.group.size()
        details = {
            "candidates": list(names),
            "named": self.named,
            "budget_s": self.budget_s,
            "remaining_steps": self.remaining_steps,
            "tolerance": self.tolerance,
            "ranks": ranks,
        }
        return fingerprint(self.workload, details)

    def run(self, asked: Sequence[Candidate]) -> tuple[Record, Installed | None]:
        """Returns the decision of a search, and the candidate that it chose."""
        try:
            ready = self._tried(asked)
        except Exception as error:
            agreed_trials((), self.group, failure=first_line(error))
            raise
        trials = agreed_trials(list(self.trials.values()), self.group)
        decision = decide(trials, remaining_steps=self.remaining_steps)
        record = Record(decision.choice, decision.reason, trials, decision.verdicts)
        return record, ready.get(decision.choice)

    def repeat(self, record: Record) -> tuple[Record, Installed | None]:
        """Returns a kept decision, its candidate compiled and verified anew."""
        if record.choice == EAGER:
            return record, None
        (_, candidate) = candidates_for([record.choice])
        self.compile_until = self.deadline
        try:
            installed = self._prepared(candidate, self._run_eager())
        except Exception as error:
            agreed_trials((), self.group, failure=first_line(error))
            raise
        outcomes = agreed_trials(list(self.trials.values()), self.group)
        (outcome,) = (t for t in outcomes if t.name == record.choice)
        if installed is not None and outcome.status == "ok":
            return record, installed
        why = outcome.why or outcome.status
        reason = f"{EAGER}: an earlier job chose {record.choice}, which failed: {why}"
        verdicts = {**record.verdicts, record.choice: why}
        return Record(EAGER, reason, record.trials, verdicts), None

    def _tried(self, asked: Sequence[Candidate]) -> dict[str, Installed]:
        """Returns the candidates that run, each timed; all have a trial after it."""
        reference = self._run_eager()
        ready = {}
        for candidate in asked:
            installed = self._prepared(candidate, reference)
            if installed is not None:
                ready[candidate.name] = installed
        self._time(ready)
        return ready

    def _run_eager(self) -> Reference:
        try:
            require_unchanged_values(self.workload)
            reference = reference_of(self.workload, self.tolerance)
        except SelectionError:
            raise
        except Exception as error:
            message = (
                f"the target does not run on the example batches: {first_line(error)}; "
                f"{self.workload.called_as}"
            )
            raise SelectionError(message) from error
        self.eager_s = _sample(self.workload, self.workload.target, 1)
        return reference

    def _prepared(self, one: Candidate, reference: Reference) -> Installed | None:
        """Compiles and verifies a candidate; None, with a trial, where it fails."""
        if one.name == EAGER:
            return Installed(one, self.workload)
        why = one.unfit(self.workload, asked=self.named) or self._not_worth(one)
        if why:
            self._lost(one, "skipped", why)
            return None
        self.progress(f"{one.name}: compiling ({one.what})")
        try:
            installed = Installed(one, self.workload)
        except Exception as error:  # noqa: BLE001
            # As in `probe`: it costs the candidate.
            self._lost(one, "failed", first_line(error))
            return None
        if installed.changes_nothing:
            why = "own kernels would run torch's operators here as well"
            self._lost(one, "skipped", why)
            return None
        seen = probe(installed, self.workload, deadline=self.compile_until)
        if seen.status == "ok":
            seen = self._verified(installed, seen, reference)
        if seen.status != "ok":
            self._lost(one, seen.status, seen.why, seen)
            return None
        if one.backend and not seen.num_graphs:
            self._lost(one, "failed", "nothing of it could be compiled", seen)
            return None
        self._learn_compile_time(one, seen)
        broken = f"{seen.num_breaks} graph breaks, first: {seen.break_reason}"
        note = broken if seen.num_breaks else ""
        self.trials[one.name] = _trial(one, "ok", note, seen)
        return installed

    def _verified(
        self, installed: Installed, seen: Probe, reference: Reference
    ) -> Probe:
        installed.on()
        try:
            why = difference(self.workload, installed.call, reference)
        except Exception as error:  # noqa: BLE001
            # As in `probe`.
            return replace(seen, status="failed", why=first_line(error))
        finally:
            installed.off()
        return replace(seen, status="differs", why=why) if why else seen

    def _lost(
        self, one: Candidate, status: str, why: str, seen: Probe | None = None
    ) -> None:
        self.progress(f"{one.name}: {status}: {why}")
        self.trials[one.name] = _trial(one, status, why, seen)

    def _not_worth(self, one: Candidate) -> str:
        if not one.backend:
            return ""
        return worth_compiling(
            eager_s=self.eager_s,
            remaining_steps=self.remaining_steps,
            compile_s=self._expected_s(one),
            left_s=self.compile_until - time.monotonic(),
        )

    def _expected_s(self, one: Candidate) -> float:
        """Returns how long a candidate will probably compile."""
        module = self.workload.module
        if module is None:
            return max(_FIRST_COMPILE_S, self.whole_compile_s)
        if one.blocks:
            # Blocks of one class share a compilation.
            kinds = {type(block): block for block in repeated_blocks(module)}
            num_leaves = sum(_num_leaves(block) for block in kinds.values())
            return _FIRST_COMPILE_S + _COMPILE_S_PER_MODULE * num_leaves
        by_size = _FIRST_COMPILE_S + _COMPILE_S_PER_MODULE * _num_leaves(module)
        return max(by_size, self.whole_compile_s)

    def _learn_compile_time(self, one: Candidate, seen: Probe) -> None:
        """Learns how long the whole will compile, from a part or another way."""
        if not one.backend:
            return
        expected = _AGAIN * seen.compile_s
        if one.blocks and self.workload.module is not None:
            num_blocks = len(repeated_blocks(self.workload.module))
            # Each break makes one more graph of a block.
            num_compiled = seen.num_graphs - seen.num_breaks
            expected = whole_compile_s(seen.compile_s, num_compiled, num_blocks)
        self.whole_compile_s = max(self.whole_compile_s, expected)

    def _time(self, ready: dict[str, Installed]) -> None:
        self.progress(f"timing {', '.join(ready)}")
        repeats = max(1, round(_SAMPLE_S / max(self.eager_s, 1e-6)))

        def sampler(installed: Installed) -> Callable[[], float]:
            def sample() -> float:
                installed.on()
                try:
                    return _sample(self.workload, installed.call, repeats)
                finally:
                    installed.off()

            return sample

        timings = race(
            {name: sampler(installed) for name, installed in ready.items()},
            enough=1.0 - MIN_GAIN,
            out_of_time=_Pace(self.deadline),
        )
        for name, timing in timings.items():
            before = self.trials.get(name) or Trial(name=name, status="ok")
            found = {n: getattr(timing, n) for n in ("step_s", "ratio", "low", "high")}
            self.trials[name] = replace(before, **found)
        order = [EAGER, *(name for name in self.trials if name != EAGER)]
        self.trials = {name: self.trials[name] for name in order}


class _Pace:
    """Says whether another round, as long as the longest, would end too late.

    Args:
        deadline: By `time.monotonic`.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._last = time.monotonic()
        self._longest_s = 0.0

    def __call__(self) -> bool:
        """Called at the end of each round."""
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._last)
        self._last = now
        return now + self._longest_s > self._deadline


def _num_leaves(module: nn.Module) -> int:
    return sum(next(part.children(), None) is None for part in module.modules())


def _sample(workload: Workload, call: Callable[..., Any], repeats: int) -> float:
    """Returns the seconds of a step: the mean over a few passes over the batches."""
    synchronize(workload.device)
    started = time.perf_counter()
    for _ in range(repeats):
        for batch in workload.batches:
            workload.run(call, batch)
    synchronize(workload.device)
    return (time.perf_counter() - started) / (repeats * len(workload.batches))


def _trial(one: Candidate, status: str, why: str, seen: Probe | None) -> Trial:
    plain = Trial(name=one.name, status=status, why=why)
    if seen is None:
        return plain
    return replace(
        plain,
        compile_s=seen.compile_s if one.backend else 0.0,
        num_graphs=seen.num_graphs,
        num_breaks=seen.num_breaks,
    )
