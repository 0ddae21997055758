"""Scaling of the learning rate with the batch, where the batch follows the ranks.

With B the batch and R the one that the learning rate was chosen for, the rate is
multiplied by

    linear  B / R         Goyal et al., "Accurate, Large Minibatch SGD", section 2.1
                          (https://arxiv.org/abs/1706.02677)
    sqrt    sqrt(B / R)   Krizhevsky, "One weird trick", section 5
                          (https://arxiv.org/abs/1404.5997)
    lamb    sqrt(B / R)   You et al., "Large Batch Optimization for Deep Learning", section
                          4 (https://arxiv.org/abs/1904.00962): approached in a warm-up
                          whose length is proportional to the batch

After a change of the batch the factor goes to its new value over `warmup` samples, in a
straight line; at once where that is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_elastic._training._refusals import refuse

if TYPE_CHECKING:
    from typing import Any

    from torch.optim import Optimizer

_RULES = ("linear", "sqrt", "lamb")
# Of all samples of the training, for each sample of the batch: 1/320 at 512.
_LAMB_WARMUP = 1 / 320 / 512


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchScaling:
    """How the learning rate follows the batch.

    Args:
        rule: "linear", "sqrt" or "lamb".
        reference_batch: The batch that the learning rate was chosen for, in samples.
        warmup: Over how many samples a new factor is approached. Not for "lamb".
        total_samples: How many samples the training reads in all. For "lamb" only, whose
            warm-up is the part `batch / 163,840` of them.

    Raises:
        ProgramError: The rule is unknown, or a number is missing or out of range.

    Example:
        >>> BatchScaling(rule="sqrt", reference_batch=64).factor(256)
        2.0
    """

    rule: str
    reference_batch: int
    warmup: int = 0
    total_samples: int = 0

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.rule not in _RULES:
            refuse("rule", rules=", ".join(_RULES), rule=self.rule)
        if self.reference_batch < 1 or self.warmup < 0:
            refuse("batch", batch=self.reference_batch, warmup=self.warmup)
        if (self.rule == "lamb") != (self.total_samples > 0):
            refuse("total_samples", total=self.total_samples, rule=self.rule)

    def factor(self, batch: int) -> float:
        """Returns what the learning rate is multiplied by for a batch."""
        ratio = batch / self.reference_batch
        return ratio if self.rule == "linear" else math.sqrt(ratio)

    def warmup_for(self, batch: int) -> float:
        """Returns over how many samples the factor of a batch is approached."""
        if self.rule == "lamb":
            return _LAMB_WARMUP * batch * self.total_samples
        return float(self.warmup)


class ScaledRate:
    """The factor of the learning rate as the training goes on.

    Args:
        scaling: The rule; None to leave the learning rate alone.
    """

    def __init__(self, scaling: BatchScaling | None) -> None:
        self._scaling = scaling
        # From which factor, since how many samples, to that of which batch.
        self._from, self._since, self._batch = 1.0, 0, 0

    def factor(self, batch: int, num_read: int) -> float:
        """Returns the factor of a step.

        Args:
            batch: Of the world that makes the step, in samples.
            num_read: How many samples were read before it.
        """
        if self._scaling is None:
            return 1.0
        if batch != self._batch:
            # A training begins with what its own warm-up is for.
            now = self._value(num_read) if self._batch else self._scaling.factor(batch)
            self._from, self._since, self._batch = now, num_read, batch
        return self._value(num_read)

    def _value(self, num_read: int) -> float:
        assert self._scaling is not None
        to, warmup = (
            self._scaling.factor(self._batch),
            self._scaling.warmup_for(self._batch),
        )
        done = 1.0 if warmup == 0 else min(1.0, (num_read - self._since) / warmup)
        return self._from + (to - self._from) * done

    def step(self, optimizer: Optimizer, batch: int, num_read: int) -> None:
        """Makes a step of an optimizer with the learning rates that belong to a batch."""
        factor = self.factor(batch, num_read)
        if factor == 1.0:
            optimizer.step()
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            optimizer.step()
        finally:
            # Schedules of the user's go on from their own.
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Returns where the warm-up is."""
        return {"from": self._from, "since": self._since, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the warm-up of another rank, or of a checkpoint."""
        self._from, self._since = state["from"], state["since"]
        self._batch = state["batch"]
