"""Which keys a query sees: the band of a causal or sliding-window mask.

The last query and the last key are at the same position. Query i of Sq sees key j of Sk
if, with p = i + Sk - Sq,

    p - left <= j <= p + right

where a side that is None has no bound.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drivetrain_kernels._check import check_whole
from drivetrain_kernels._errors import OptionError
from drivetrain_kernels._fast_path import is_watched

if TYPE_CHECKING:
    from collections.abc import Callable

MASK_CACHE_BYTES = 128 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """How far a query sees to either side; None is without end."""

    left: int | None
    right: int | None

    @property
    def is_causal(self) -> bool:
        """Whether it is the plain causal mask."""
        return self.left is None and self.right == 0

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key."""
        return self.left is None and self.right is None

    def covers(self, distance: Tensor) -> Tensor:
        """Returns whether keys are seen at distances: theirs less the query's."""
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.left is not None:
            seen &= distance >= -self.left
        if self.right is not None:
            seen &= distance <= self.right
        return seen

    def mask(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """Returns whether a query sees a key, shape [num_queries, num_keys]."""
        query = torch.arange(num_queries, device=device) + (num_keys - num_queries)
        key = torch.arange(num_keys, device=device)
        return self.covers(key - query.unsqueeze(1))


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences of differing lengths that lie one after the other.

    Args:
        cu_q: Where the queries of each sequence start, then where the last one ends.
        cu_k: Likewise for the keys.
        max_seqlen: At least the length of the longest sequence.
        is_self: Whether queries and keys are those of the same tokens.
    """

    cu_q: Tensor
    cu_k: Tensor
    max_seqlen: int
    is_self: bool

    def mask(self, band: Band, num_queries: int, num_keys: int) -> Tensor:
        """Returns whether a query sees a key, for all sequences at once."""
        sequence_q, place_q = _places(self.cu_q, num_queries)
        sequence_k, place_k = _places(self.cu_k, num_keys)
        lengths_q, lengths_k = self.cu_q.diff(), self.cu_k.diff()
        shift = torch.cat([lengths_k - lengths_q, lengths_k.new_zeros(1)])
        place_q = place_q + shift[sequence_q]
        seen = band.covers(place_k - place_q.unsqueeze(1))
        same = sequence_k == sequence_q.unsqueeze(1)
        return seen & same & (sequence_q < len(lengths_q)).unsqueeze(1)


def _places(cu: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Returns the sequence of each token, and its place in it."""
    token = torch.arange(num_tokens, device=cu.device)
    sequence = torch.bucketize(token, cu[1:].long(), right=True)
    return sequence, token - cu.long()[sequence]


def resolve_band(
    causal: bool, window: int | tuple[int | None, int | None] | None
) -> Band:
    """Returns the band of the options of `attention`.

    Raises:
        OptionError: A window is not positive, or a side of it is negative.

    Example:
        >>> resolve_band(True, 128)
        Band(left=127, right=0)
        >>> resolve_band(False, (64, None))
        Band(left=64, right=None)
    """
    left: int | None
    right: int | None
    if window is None:
        left = right = None
    elif isinstance(window, tuple):
        sides: tuple[object, ...] = window
        if len(sides) != 2:
            message = f"attention: window must be a number or two, got {window}"
            raise OptionError(message)
        left, right = window
        for side in sides:
            if side is not None:
                check_whole("attention", "each side of window", side)
        if any(side is not None and side < 0 for side in window):
            message = (
                "attention: each side of window must be >= 0, or None for no bound, "
                f"got {window}"
            )
            raise OptionError(message)
    else:
        check_whole("attention", "window", window)
        if window < 1:
            message = (
                "attention: window must be >= 1, as it counts the query itself, got "
                f"{window}; None is no window"
            )
            raise OptionError(message)
        left = right = window - 1
    return Band(left=left, right=0 if causal else right)


def shares_keys(num_heads: int, num_key_heads: int) -> bool:
    """Returns whether several heads of queries share one of keys.

    While a compiler traces, sizes may be symbols, and a comparison of them is no bool.

    Example:
        >>> shares_keys(8, 2), shares_keys(8, 8)
        (True, False)
    """
    if num_heads == num_key_heads:  # noqa: SIM103
        return False
    return True


class MaskCache:
    """Keeps masks that were made, the last used ones up to a number of bytes.

    It may be used from several threads.

    Args:
        max_bytes: How much the masks may take together.

    Example:
        >>> cache = MaskCache(max_bytes=10)
        >>> first = cache.get("a", lambda: torch.zeros(8, dtype=torch.bool))
        >>> cache.get("a", lambda: None) is first
        True
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._masks: OrderedDict[object, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Returns the mask of a key, which is made if it is not there."""
        with self._lock:
            if key in self._masks:
                self._masks.move_to_end(key)
                return self._masks[key]
        # One that is made for inference could not be saved for a later backward.
        with torch.inference_mode(False):
            mask = make()
        with self._lock:
            self._masks[key] = mask
            while self.num_bytes > self.max_bytes:
                self._masks.popitem(last=False)
        return mask

    @property
    def num_bytes(self) -> int:
        """What the masks take together."""
        return sum(m.numel() * m.element_size() for m in self._masks.values())

    def clear(self) -> None:
        """Forgets all masks."""
        with self._lock:
            self._masks.clear()


MASKS = MaskCache(MASK_CACHE_BYTES)


def cached_mask(key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
    """Returns a mask from the cache; it is made anew where operators are watched.

    What a compiler, a fake mode or a transform makes is no mask for another call.
    """
    if is_watched():
        return make()
    return MASKS.get(key, make)
