"""What the model of queues is asked: links, flows on them, and when links are paused."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drivetrain_fabric.network._errors import FabricError


@dataclass(frozen=True, kw_only=True, slots=True)
class Pfc:
    """When a switch pauses a link that comes into it.

    Args:
        xoff_bytes: Above so much that came over the link, it is paused.
        xon_bytes: Below so much it goes on.
        delay_s: How long a pause takes to act.

    Raises:
        FabricError: The numbers are out of order.
    """

    xoff_bytes: float = 500e3
    xon_bytes: float = 480e3
    delay_s: float = 2e-6

    def __post_init__(self) -> None:
        """Checks the order of the numbers."""
        if not 0 < self.xon_bytes <= self.xoff_bytes or self.delay_s < 0:
            message = (
                "PFC needs 0 < xon_bytes <= xoff_bytes and no negative delay, got "
                f"{self.xon_bytes:g}, {self.xoff_bytes:g} and {self.delay_s:g} s"
            )
            raise FabricError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Links, and the flows on them.

    Args:
        names: The links' names.
        bits_per_s: What each carries.
        paths: The links of each flow, from the sender's card to the receiver's.
        buffer_bytes: How much of what came over one link a switch keeps; what exceeds it
            is lost.
        starts: The rate in bits a second that each flow starts with; None for that of
            its card.

    Raises:
        FabricError: A link or a flow makes no sense.
    """

    names: tuple[str, ...]
    bits_per_s: tuple[float, ...]
    paths: tuple[tuple[int, ...], ...]
    buffer_bytes: float = 1e6
    starts: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Checks links and flows."""
        if len(self.names) != len(self.bits_per_s) or not self.names:
            message = (
                f"there are {len(self.names)} names of links and "
                f"{len(self.bits_per_s)} speeds"
            )
            raise FabricError(message)
        if not all(0 < speed < math.inf for speed in self.bits_per_s):
            message = (
                f"links must carry more than nothing, got {min(self.bits_per_s):g}"
            )
            raise FabricError(message)
        for path in self.paths:
            known = all(0 <= link < len(self.names) for link in path)
            if not path or not known or len(set(path)) < len(path):
                message = (
                    f"a path goes once over some of the {len(self.names)} links, "
                    f"got {path}"
                )
                raise FabricError(message)
        if not self.paths or not self.buffer_bytes > 0:
            message = "there must be one flow at least, and a buffer"
            raise FabricError(message)
        if self.starts is not None and len(self.starts) != len(self.paths):
            message = f"{len(self.paths)} flows start with {len(self.starts)} rates"
            raise FabricError(message)


def incast(
    num_senders: int,
    *,
    bits_per_s: float = 40e9,
    uplink_ratio: float = 1.0,
    buffer_bytes: float = 1e6,
) -> Scenario:
    """Returns many senders to one receiver, and a victim that shares a link with one.

    Each sender hangs on a leaf of its own, and all leaves on one spine. The victim, the
    last flow, sends to another leaf: of what is congested it shares nothing but the way
    up of the first sender.

    Args:
        num_senders: The senders, without the victim.
        bits_per_s: What a network card carries.
        uplink_ratio: How many times that the links between switches carry.
        buffer_bytes: As in `Scenario`.

    Raises:
        FabricError: There is no sender, or a speed makes no sense.

    Example:
        >>> incast(2).names[-3:]
        ('leaf to receiver', 'spine to other', 'leaf to other')
    """
    if num_senders < 1:
        message = f"an incast needs one sender at least, got {num_senders}"
        raise FabricError(message)
    num, fast = num_senders, bits_per_s * uplink_ratio
    names = [f"sender {i}" for i in range(num)] + ["victim"]
    names += [f"leaf {i} to spine" for i in range(num)]
    names += ["spine to receiver", "leaf to receiver", "spine to other"]
    names += ["leaf to other"]
    speeds = [bits_per_s] * (num + 1) + [fast] * num
    speeds += [fast, bits_per_s, fast, bits_per_s]
    up, down = num + 1, 2 * num + 1
    paths = [(i, up + i, down, down + 1) for i in range(num)]
    paths.append((num, up, down + 2, down + 3))
    return Scenario(
        names=tuple(names),
        bits_per_s=tuple(speeds),
        paths=tuple(paths),
        buffer_bytes=buffer_bytes,
    )
