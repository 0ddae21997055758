"""Which candidate to keep: a pure function of what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_GAIN = 0.02
"""The least part of a step that a candidate must save to be taken."""

_BEST_PLAUSIBLE = 0.5  # of a step that compilation saves, when nothing is measured yet
_PER_BLOCK = 0.5  # of the time of a block alone, which it takes within the whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What became of one candidate.

    Args:
        name: The candidate.
        status: "ok" if it was timed, else "failed", "differs" (from eager's results),
            "unstable" (it compiles anew again and again) or "skipped".
        why: What went wrong, or what is worth knowing.
        compile_s: Seconds that its first steps took beyond their usual time.
        step_s: The median time of a step.
        ratio: The median of its time over eager's, in turns.
        low: The lower end of the ratio's interval of about 95 %.
        high: The upper end.
        num_graphs: Graphs compiled.
        num_breaks: Graph breaks met.
    """

    name: str
    status: str
    why: str = ""
    compile_s: float = 0.0
    step_s: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    num_graphs: int = 0
    num_breaks: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, for JSON."""
        return asdict(self)


_NUMBERS = [field.name for field in fields(Trial) if field.type != "str"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The candidate to keep, and why.

    Args:
        choice: Its name.
        reason: Why it.
        verdicts: By candidate, what was decided on it.
    """

    choice: str
    reason: str
    verdicts: dict[str, str]


def decide(
    trials: Sequence[Trial],
    *,
    remaining_steps: int | None = None,
    min_gain: float = MIN_GAIN,
) -> Decision:
    """Returns the fastest candidate that surely beats eager, or eager.

    A candidate beats eager when the median of its ratios is at most `1 - min_gain` and
    their interval stays below one. With `remaining_steps`, what it saves in them must
    also be more than it took to compile: a job that starts anew pays that again.

    Args:
        trials: What was measured; the first is eager.
        remaining_steps: The steps that are left to train, if known.
        min_gain: The least part of a step to save.

    Example:
        >>> eager = Trial(name="eager", status="ok", step_s=1.0, ratio=1.0)
        >>> block = Trial(name="block", status="ok", step_s=0.8, ratio=0.8, low=0.79,
        ...     high=0.81, compile_s=30.0)
        >>> decide([eager, block]).choice
        'block'
        >>> decide([eager, block], remaining_steps=100).reason
        'eager: no candidate beats it; block: saves 20.0 s in 100 steps, and takes \
30.0 s to compile'
    """
    eager, *others = trials
    verdicts = {t.name: _verdict(t, eager, remaining_steps, min_gain) for t in others}
    good = [t for t in others if not verdicts[t.name]]
    if not good:
        near = [f"{t.name}: {verdicts[t.name]}" for t in others if t.status == "ok"]
        detail = f"; {near[0]}" if len(near) == 1 else ""
        tried = not others or any(t.status != "skipped" for t in others)
        why = "no candidate beats it" if tried else "no candidate was tried"
        reason = f"{eager.name}: {why}{detail}"
        return Decision(choice=eager.name, reason=reason, verdicts=verdicts)
    best = min(good, key=lambda t: t.ratio)
    for other in good:
        if other is not best:
            verdicts[other.name] = f"beats eager, and {best.name} is faster"
    reason = f"{best.name}: {best.ratio:.3f} of eager's time ({_interval(best)})"
    verdicts[best.name] = "the fastest"
    return Decision(choice=best.name, reason=reason, verdicts=verdicts)


def _verdict(
    trial: Trial, eager: Trial, remaining_steps: int | None, min_gain: float
) -> str:
    """Returns why a candidate cannot be taken, or an empty string."""
    if trial.status != "ok":
        return trial.why or trial.status
    if trial.low > 1.0:
        return f"slower ({_interval(trial)})"
    if trial.ratio > 1.0:
        return f"slower, if not surely ({_interval(trial)})"
    if trial.ratio > 1.0 - min_gain:
        return f"saves {1.0 - trial.ratio:.1%}, less than {min_gain:.0%}"
    if trial.high >= 1.0:
        return f"saves less than the noise ({_interval(trial)})"
    if remaining_steps is None:
        return ""
    saved = (1.0 - trial.ratio) * eager.step_s * remaining_steps
    if saved > trial.compile_s:
        return ""
    return (
        f"saves {saved:.1f} s in {remaining_steps} steps, and takes "
        f"{trial.compile_s:.1f} s to compile"
    )


def _interval(trial: Trial) -> str:
    return f"{trial.low:.3f} to {trial.high:.3f}"


def worth_compiling(
    *, eager_s: float, remaining_steps: int | None, compile_s: float, left_s: float
) -> str:
    """Returns why a candidate should not even be compiled, or an empty string.

    Args:
        eager_s: The time of an eager step.
        remaining_steps: The steps that are left to train, if known.
        compile_s: How long the compilation is expected to take.
        left_s: What is left of the time to decide in.

    Example:
        >>> worth_compiling(eager_s=0.1, remaining_steps=10, compile_s=8.0, left_s=60.0)
        'twice the speed would save 0.5 s in 10 steps, compiling takes about 8.0 s'
    """
    if compile_s > left_s:
        return f"compiling takes about {compile_s:.1f} s, {max(left_s, 0.0):.1f} s left"
    if remaining_steps is None:
        return ""
    saved = _BEST_PLAUSIBLE * eager_s * remaining_steps
    if saved > compile_s:
        return ""
    return (
        f"twice the speed would save {saved:.1f} s in {remaining_steps} steps, "
        f"compiling takes about {compile_s:.1f} s"
    )


def whole_compile_s(compile_s: float, num_compiled: int, num_blocks: int) -> float:
    """Returns how long a whole model will compile whose blocks have been compiled.

    Args:
        compile_s: What the blocks took together.
        num_compiled: How many of them were compiled; the others are like those.
        num_blocks: How many there are.

    Example:
        >>> whole_compile_s(4.0, num_compiled=1, num_blocks=6)
        12.0
    """
    return _PER_BLOCK * num_blocks * compile_s / max(1, num_compiled)


def slowest(by_rank: Sequence[Sequence[Trial]]) -> list[Trial]:
    """Returns one list of trials for all ranks: each candidate as on its worst rank.

    Args:
        by_rank: The trials of every rank; a candidate that failed on one has failed.

    Example:
        >>> fast = Trial(name="block", status="ok", ratio=0.8, step_s=1.0)
        >>> slow = Trial(name="block", status="ok", ratio=1.1, step_s=2.0)
        >>> slowest([[fast], [slow]])[0].ratio
        1.1
    """
    names = list(dict.fromkeys(t.name for trials in by_rank for t in trials))
    merged = []
    for name in names:
        own = [next((t for t in trials if t.name == name), None) for trials in by_rank]
        merged.append(_worst(name, own))
    return merged


def _worst(name: str, own: Sequence[Trial | None]) -> Trial:
    for rank, trial in enumerate(own):
        if trial is None:
            return Trial(name=name, status="skipped", why=f"not tried on rank {rank}")
        if trial.status != "ok":
            return replace(trial, why=f"on rank {rank}: {trial.why}")
    there = [trial for trial in own if trial is not None]
    worst = {f: max(getattr(trial, f) for trial in there) for f in _NUMBERS}
    return replace(there[0], **worst)
