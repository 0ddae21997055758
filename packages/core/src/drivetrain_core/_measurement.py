"""What a run of some training steps measured."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Times, memory and amounts of a run of optimizer steps.

    Args:
        step_times_s: Seconds of each step, data loading included.
        samples_per_step: Samples of the global batch.
        tokens_per_step: Tokens of the global batch, or None.
        peak_memory_bytes: The peak of device memory; on a CPU, of resident memory.
        data_share: The part of a step spent waiting for data, 0 to 1.
        optimizer_share: The part of a step spent in the optimizer, 0 to 1.
        flops_per_step: Floating-point operations of a step, or None.
        setup_s: Seconds from the start of the process to the first timed step, but for
            the passes of the observation.

    Example:
        >>> m = Measurement(step_times_s=(0.5, 0.4, 0.6), samples_per_step=8)
        >>> m.step_time_s, m.samples_per_s
        (0.5, 16.0)
    """

    step_times_s: tuple[float, ...]
    samples_per_step: int
    tokens_per_step: int | None = None
    peak_memory_bytes: int = 0
    data_share: float = 0.0
    optimizer_share: float = 0.0
    flops_per_step: int | None = None
    setup_s: float = 0.0

    @property
    def step_time_s(self) -> float:
        """The median step in seconds."""
        return statistics.median(self.step_times_s)

    @property
    def quiet_step_time_s(self) -> float:
        """The lower quartile of the steps: what the machine does when undisturbed.

        Other work on a machine only ever slows a step, so plans whose trials ran
        minutes apart are ranked by it.
        """
        ordered = sorted(self.step_times_s)
        return ordered[(len(ordered) - 1) // 4]

    @property
    def samples_per_s(self) -> float:
        """Samples a second, from the median step."""
        return self.samples_per_step / self.step_time_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second, from the median step."""
        if self.tokens_per_step is None:
            return None
        return self.tokens_per_step / self.step_time_s

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measurement:
        """Returns the measurement that `to_dict` wrote."""
        times = tuple(fields["step_times_s"])
        return cls(**{**fields, "step_times_s": times})
