"""Where a supervisor gets nodes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Market


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolNode:
    """A node that was asked for, or is there.

    Args:
        name: Which one; its agent has the same.
        market: On what terms.
        is_running: Whether it is there.
        deadline_s: When it may be gone, if the pool knows that it will be taken away.
        offer: What a list of prices calls its kind.
    """

    name: str
    market: Market
    is_running: bool
    deadline_s: float | None = None
    offer: str = ""


class CapacityPool(Protocol):
    """Gives nodes and takes them back: a cloud's API, a queue, or this machine.

    Its methods are called from one thread, and must not wait for nodes. One that cannot
    reach whatever it asks raises an `OSError`, and is asked again.
    """

    def request(self, market: Market, count: int) -> tuple[str, ...]:
        """Asks for nodes, each with an agent of the job; returns their names.

        Args:
            market: On what terms.
            count: How many.
        """
        ...

    def cancel(self, node: str) -> None:
        """Takes a request back; nothing happens if the node is there or gone."""
        ...

    def release(self, node: str) -> None:
        """Gives a node back; nothing happens if it is gone."""
        ...

    def nodes(self, now_s: float) -> tuple[PoolNode, ...]:
        """Returns what was asked for and is not gone.

        Args:
            now_s: The time, as `time.monotonic()` counts; all times are.
        """
        ...

    def offered(self, now_s: float) -> int:
        """Returns how many nodes are idle that nobody asked for; 0 if not known."""
        ...
