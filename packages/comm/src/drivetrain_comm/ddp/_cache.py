"""Cache of reduction plans: one small file for each set of hosts and gradients."""

from __future__ import annotations

import json
import logging
import math
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_comm._version import __version__
from drivetrain_comm.ddp._reduction_plan import ReductionPlan
from drivetrain_comm.selection._choice import Choice
from drivetrain_comm.selection._cost import Network
from drivetrain_core.services import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

# A network that differs by more is another one.
_ALIKE = 1.5


def fingerprint(
    names: Sequence[str],
    hosts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    settings: str,
) -> str:
    """Returns what a plan was found for, as a file's name.

    Args:
        names: Of the hosts.
        hosts: The ranks of each.
        sizes: Of the buckets, in bytes.
        settings: What was fixed.

    Example:
        >>> fingerprint(["a"], [[0, 1]], [4], "default") == fingerprint(
        ...     ["b"], [[0, 1]], [4], "default")
        False
    """
    whole = json.dumps([list(names), [*map(list, hosts)], list(sizes), settings])
    return f"{__version__}-{len(names)}-{zlib.crc32(whole.encode()):08x}"


def is_alike(one: Network, other: Network) -> bool:
    """Returns whether two measurements may be of the same network."""
    pairs = [
        (one.flow_bytes_per_s, other.flow_bytes_per_s),
        (one.port_bytes_per_s, other.port_bytes_per_s),
        # Delays below a millisecond are mostly the machine's.
        (one.delay_s + 1e-3, other.delay_s + 1e-3),
    ]
    return all(1 / _ALIKE < a / b < _ALIKE for a, b in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a run found.

    Args:
        plan: The fastest.
        network: On which it was.
    """

    plan: ReductionPlan
    network: Network


def dump_plan(plan: ReductionPlan) -> str:
    """Returns a plan as text.

    Example:
        >>> plan = ReductionPlan(bucket_bytes=4, choice=Choice(algorithm="ring"))
        >>> load_plan(dump_plan(plan)) == plan
        True
    """
    return json.dumps(asdict(plan))


def load_plan(text: str) -> ReductionPlan:
    """Returns the plan that a text describes.

    Raises:
        ValueError: A number is none.
    """
    fields = json.loads(text)
    choice = Choice(**fields["choice"])
    plan = ReductionPlan(bucket_bytes=fields["bucket_bytes"], choice=choice)
    for number in (plan.bucket_bytes, choice.num_streams, choice.segment_bytes):
        _check(number, int)
    return plan


def load(name: str, environment: Mapping[str, str] = os.environ) -> Found | None:
    """Returns what was found under a name, or None.

    A file that cannot be read counts as none.
    """
    file = Path(f"{name}.json")
    try:
        file = _folder(environment) / file
        found = json.loads(file.read_text())
        return Found(
            plan=load_plan(json.dumps(found["tactic"])),
            network=_load_network(found["network"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        logger.warning("%s is not used: %s", file, error)
        return None


def _load_network(fields: dict[str, Any]) -> Network:
    for number in fields.values():
        _check(number, int, float)
    return Network(**fields)


def _check(number: Any, *kinds: type) -> None:
    is_number = isinstance(number, kinds)
    if not is_number or not 0 <= number < math.inf:
        message = f"it has {number!r} in place of a number"
        raise ValueError(message)


def save(name: str, found: Found, environment: Mapping[str, str] = os.environ) -> None:
    """Writes what was found; whoever reads meanwhile sees the old file or the new one."""
    fields = {"tactic": asdict(found.plan), "network": asdict(found.network)}
    try:
        # Without a home there is no such folder.
        file = _folder(environment) / f"{name}.json"
        write_whole(file, json.dumps(fields, indent=2))
    except (OSError, RuntimeError) as error:
        logger.warning("%s is not kept for the next run: %s", name, error)


def _folder(environment: Mapping[str, str]) -> Path:
    given = environment.get("DRIVETRAIN_COMM_CACHE")
    if given:
        return Path(given)
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "drivetrain" / "comm"
