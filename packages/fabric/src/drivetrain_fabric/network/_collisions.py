"""How often flows meet on a port: balls in bins, in closed form and by a real hash.

`k` flows that choose among `n` ports are `k` balls in `n` bins. No two share a port with
the probability n! / ((n - k)! n^k). That no port gets more than `m` is the coefficient
of x^k in (sum over i <= m of x^i / i!)^n, times k! / n^k.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric._collision_probability import shared_bin_probability
from drivetrain_fabric.network._ecmp import source_ports
from drivetrain_fabric.network._errors import FabricError

if TYPE_CHECKING:
    from drivetrain_fabric.network._clos import FloatArray
    from drivetrain_fabric.network._ecmp import Ecmp


def collision_probability(num_flows: int, num_links: int) -> float:
    """Returns how likely it is that two flows at least share a link.

    Args:
        num_flows: The flows, each of which chooses a link by chance.
        num_links: The links.

    Raises:
        FabricError: A number is negative, or there is no link.

    Example:
        >>> round(collision_probability(23, 365), 4)
        0.5073
    """
    _check(num_flows, num_links)
    return shared_bin_probability(num_flows, num_links)


def overload_probability(num_flows: int, num_links: int, carried: int) -> float:
    """Returns how likely it is that a link gets more flows than it carries.

    Args:
        num_flows: The flows, each of which chooses a link by chance.
        num_links: The links.
        carried: How many flows a link carries at their full speed; with 1 this is
            `collision_probability`.

    Raises:
        FabricError: A number is negative, or there is no link.

    Example:
        >>> overload_probability(2, 2, 1), overload_probability(2, 2, 2)
        (0.5, 0.0)
    """
    _check(num_flows, num_links)
    if carried < 0:
        message = f"a link carries zero flows at least, got {carried}"
        raise FabricError(message)
    if carried >= num_flows:
        return 0.0
    if carried == 1:
        return shared_bin_probability(num_flows, num_links)
    if carried * num_links < num_flows:
        return 1.0
    # Poisson weights instead of 1 / i! keep all terms between 0 and 1; that their sum
    # is `num_flows` exactly is what it is divided by.
    mean = num_flows / num_links
    within = _power(_poisson(mean, carried), num_links, num_flows)
    exactly = math.exp(
        num_flows * math.log(num_flows) - num_flows - math.lgamma(num_flows + 1)
    )
    return float(min(max(1 - within[num_flows] / exactly, 0.0), 1.0))


def expected_largest_load(num_flows: int, num_links: int) -> float:
    """Returns how many flows the link with the most has, on average.

    Args:
        num_flows: The flows, each of which chooses a link by chance.
        num_links: The links.

    Raises:
        FabricError: A number is negative, or there is no link.

    Example:
        >>> expected_largest_load(2, 2)
        1.5
    """
    _check(num_flows, num_links)
    expected = 0.0
    for carried in range(num_flows):
        more = overload_probability(num_flows, num_links, carried)
        expected += more
        if more < 1e-12:
            break
    return expected


def flow_overload_probability(num_flows: int, num_links: int, carried: int) -> float:
    """Returns how likely it is that one flow's link gets more flows than it carries.

    Args:
        num_flows: The flows, this one included.
        num_links: The links.
        carried: How many flows a link carries at their full speed.

    Raises:
        FabricError: A number is negative, or there is no link.

    Example:
        >>> flow_overload_probability(3, 2, 1)
        0.75
    """
    _check(num_flows, num_links)
    if num_links == 1 or carried < 1:
        return float(num_flows > max(carried, 0))
    # That no more than `carried - 1` of the others choose the same link.
    others, chance = num_flows - 1, 1 / num_links
    logs = (
        math.lgamma(others + 1)
        - math.lgamma(i + 1)
        - math.lgamma(others - i + 1)
        + i * math.log(chance)
        + (others - i) * math.log1p(-chance)
        for i in range(min(carried, others + 1))
    )
    return min(max(1 - math.fsum(map(math.exp, logs)), 0.0), 1.0)


def simulated_overload(
    num_flows: int,
    num_links: int,
    carried: int,
    *,
    ecmp: Ecmp,
    num_samples: int = 20_000,
) -> float:
    """Returns how often a link gets more flows than it carries, by a switch's hash.

    Each sample is one switch with a seed of its own, and flows between addresses of
    their own.

    Args:
        num_flows: The flows of a sample.
        num_links: The links they are hashed to.
        carried: How many flows a link carries.
        ecmp: The hash, and the seed of all samples.
        num_samples: How many samples are drawn.

    Raises:
        FabricError: A number is negative, or there is no link or sample.

    Example:
        >>> from drivetrain_fabric.network import Ecmp
        >>> simulated_overload(3, 2, 1, ecmp=Ecmp(), num_samples=10)
        1.0
    """
    _check(num_flows, num_links)
    if num_samples < 1:
        message = f"there must be one sample at least, got {num_samples}"
        raise FabricError(message)
    generator = np.random.default_rng(ecmp.seed)
    num_hit = 0
    # In parts of about a million flows, for the sake of memory.
    size = max(1, min(num_samples, (1 << 20) // max(num_flows, 1)))
    for first in range(0, num_samples, size):
        num = min(size, num_samples - first)
        switch = np.repeat(np.arange(first, first + num), num_flows)
        source = generator.integers(1 << 24, size=num * num_flows)
        target = generator.integers(1 << 24, size=num * num_flows)
        ports = source_ports(source, target, switch, ecmp.seed)
        # An ideal hash draws its digests: each part needs draws of its own.
        part = replace(ecmp, seed=ecmp.seed + first) if ecmp.kind == "random" else ecmp
        digests = part.digests(source, target, ports)
        chosen = ecmp.choose(digests, switch, num_links)
        flat = (switch - first) * num_links + chosen
        loads = np.bincount(flat, minlength=num * num_links).reshape(num, num_links)
        num_hit += int((loads.max(axis=1) > carried).sum())
    return num_hit / num_samples


def _check(num_flows: int, num_links: int) -> None:
    if num_flows < 0 or num_links < 1:
        message = (
            "there must be zero flows and one link at least, got "
            f"{num_flows} flows and {num_links} links"
        )
        raise FabricError(message)


def _poisson(mean: float, most: int) -> FloatArray:
    log = math.log(mean)
    logs = (i * log - mean - math.lgamma(i + 1) for i in range(most + 1))
    return np.array([math.exp(each) for each in logs])


def _power(terms: FloatArray, exponent: int, degree: int) -> FloatArray:
    """Returns a power of a polynomial, up to a degree; all its terms are positive."""
    result = np.zeros(degree + 1)
    result[0] = 1.0
    while exponent:
        if exponent & 1:
            result = np.convolve(result, terms)[: degree + 1]
        terms = np.convolve(terms, terms)[: degree + 1]
        exponent >>= 1
    return result
