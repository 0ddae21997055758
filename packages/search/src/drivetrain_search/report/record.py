"""One trial as plain data: what was tried, what it measured, or why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core import Choice, Code, Measurement, PlanFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One trial.

    Args:
        name: `t01`, `t02`, ... in the order of the trials.
        choices: The plan.
        seconds: What the trial took, processes started and ended.
        measurement: What it measured; None when it failed.
        code: Why it cannot be used; empty when it can.
        because: The reason in words.
        log: The end of what a failed rank printed.
        guard: The numerical differences from the baseline.
        started_s: When it began, in seconds since the search did.
        cached: Whether an earlier search measured it, and this one did not run it.
        rung: How thoroughly it was measured: 0 for the least, more for more steps.

    Example:
        >>> record = TrialRecord(name="t01", choices=(Choice("ddp", {}),), seconds=2.5)
        >>> TrialRecord.from_dict(record.to_dict()) == record
        True
    """

    name: str
    choices: tuple[Choice, ...]
    seconds: float
    measurement: Measurement | None = None
    code: str = ""
    because: str = ""
    log: str = ""
    guard: Mapping[str, Any] | None = None
    started_s: float = 0.0
    cached: bool = False
    rung: int = 0

    @property
    def usable(self) -> bool:
        """Whether the plan ran and trains the same model."""
        return self.measurement is not None and not self.code

    @property
    def reason(self) -> str:
        r"""Code and first line of the reason, for one line of a table; empty if usable.

        Example:
            >>> failed = TrialRecord(name="t02", choices=(), seconds=1.0, code="ERROR",
            ...     because="RuntimeError: no kernel\nof this kind")
            >>> failed.reason
            'ERROR: RuntimeError: no kernel'
        """
        if not self.code:
            return ""
        lines = self.because.strip().splitlines() or [""]
        return f"{self.code}: {lines[0]}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as plain data, of which `from_dict` makes an equal one."""
        return {
            "name": self.name,
            "plan": plain_choices(self.choices),
            "seconds": self.seconds,
            "measurement": self.measurement and self.measurement.to_dict(),
            "code": str(self.code),
            "because": self.because,
            "log": self.log,
            "guard": None if self.guard is None else dict(self.guard),
            "started_s": self.started_s,
            "cached": self.cached,
            "rung": self.rung,
        }

    @classmethod
    def from_dict(cls, data: object) -> TrialRecord:
        """Returns the record that `to_dict` wrote.

        Raises:
            PlanFormatError: The data is no record; what is wrong is named.
        """
        if not isinstance(data, Mapping):
            raise _broken(because=f"it must be a mapping, got {type(data).__name__}")
        guard = data.get("guard")
        if guard is not None and not isinstance(guard, Mapping):
            raise _broken(because=f"key 'guard' must be a mapping, got {guard!r}")
        return cls(
            name=_typed(data, "name", str),
            choices=_choices(data.get("plan")),
            seconds=_number(data, "seconds"),
            measurement=_measurement(data.get("measurement")),
            code=_typed(data, "code", str),
            because=_typed(data, "because", str),
            log=_typed(data, "log", str),
            guard=None if guard is None else dict(guard),
            started_s=_number(data, "started_s"),
            cached=_typed(data, "cached", bool),
            rung=_typed(data, "rung", int),
        )


def plain_choices(choices: Iterable[Choice]) -> list[dict[str, dict[str, Any]]]:
    """Returns choices as plain data.

    Example:
        >>> plain_choices([Choice("compile", {"scope": "block"})])
        [{'compile': {'scope': 'block'}}]
    """
    return [{choice.name: dict(choice.config)} for choice in choices]


def count_text(trials: Sequence[TrialRecord]) -> str:
    """Returns how many trials there are, in words."""
    return "1 trial" if len(trials) == 1 else f"{len(trials)} trials"


def speed_text(measurement: Measurement) -> str:
    """Returns the speed that plans are ranked by, of a quiet step, as text."""
    step_s = measurement.quiet_step_time_s
    if measurement.tokens_per_step is not None:
        return f"{measurement.tokens_per_step / step_s:,.0f} tok/s"
    return f"{measurement.samples_per_step / step_s:,.1f} samples/s"


def _broken(*, because: str) -> PlanFormatError:
    return PlanFormatError(Code.FORMAT, "trial record", because=because)


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if type(value) is not kind:
        raise _broken(
            because=f"key {key!r} must be of type {kind.__name__}, got {value!r}"
        )
    return value


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _broken(because=f"key {key!r} must be a number, got {value!r}")
    # JSON has integers that no float can hold.
    if not 0 <= value < 1e30:
        raise _broken(
            because=f"key {key!r} must be a length of time or an amount: {value!r}"
        )
    return value


def _choices(data: object) -> tuple[Choice, ...]:
    if not isinstance(data, list):
        raise _broken(because=f"key 'plan' must be a list, got {data!r}")
    choices = []
    for item in data:
        if not isinstance(item, Mapping) or len(item) != 1:
            raise _broken(because=f"an entry of 'plan' is no `name: options`: {item!r}")
        ((name, config),) = item.items()
        plain = isinstance(config, Mapping) and all(
            value is None or isinstance(value, str | int | float)
            for value in config.values()
        )
        if not isinstance(name, str) or not plain:
            raise _broken(because=f"an entry of 'plan' is no `name: options`: {item!r}")
        choices.append(Choice(name, dict(config)))
    return tuple(choices)


def _measurement(data: object) -> Measurement | None:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise _broken(because=f"key 'measurement' must be a mapping, got {data!r}")
    times = data.get("step_times_s")
    if not isinstance(times, list | tuple) or not times:
        raise _broken(
            because=f"key 'step_times_s' must be a list of times, got {times!r}"
        )
    steps = [_number({"step_times_s": time}, "step_times_s") for time in times]
    if min(steps) <= 0:
        raise _broken(because="a step must have taken some time")
    for key in ("samples_per_step", "peak_memory_bytes"):
        _typed(data, key, int)
    amounts = ("samples_per_step", "peak_memory_bytes", "setup_s")
    for key in (*amounts, "data_share", "optimizer_share"):
        _number(data, key)
    for key in ("tokens_per_step", "flops_per_step"):
        if data.get(key) is not None:
            _number(data, key)
    try:
        return Measurement.from_dict(data)
    except TypeError as error:
        raise _broken(because=f"key 'measurement' has other keys: {error}") from error
