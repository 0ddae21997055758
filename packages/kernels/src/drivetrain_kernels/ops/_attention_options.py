"""Options of a call of `attention`, as its implementations take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_kernels.ops._attention_band import Band, Packed


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionOptions:
    """What attention depends on besides queries, keys and values.

    Args:
        band: Which keys a query sees.
        scale: Multiplies the scores.
        softcap: Caps the scores; None for no cap.
        dropout_p: The share of the probabilities that is dropped.
        packed: The sequences; None for a batch of equal length.
    """

    band: Band
    scale: float
    softcap: float | None = None
    dropout_p: float = 0.0
    packed: Packed | None = None
