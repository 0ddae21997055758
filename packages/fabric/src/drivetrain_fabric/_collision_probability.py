"""Probability that flows which choose a path by chance collide (balls in bins)."""

from __future__ import annotations

import math


def shared_bin_probability(num_balls: int, num_bins: int) -> float:
    """Returns how likely it is that some bin gets two balls or more.

    With k balls in n bins it is 1 - n! / ((n - k)! n^k), if each bin is as likely.

    Args:
        num_balls: k, 0 or more.
        num_bins: n, 1 or more.

    Example:
        >>> round(shared_bin_probability(23, 365), 4), shared_bin_probability(9, 8)
        (0.5073, 1.0)
    """
    if num_balls > num_bins:
        return 1.0
    logs = math.fsum(math.log1p(-i / num_bins) for i in range(num_balls))
    return -math.expm1(logs)
