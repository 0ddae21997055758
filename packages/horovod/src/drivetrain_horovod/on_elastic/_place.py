"""The numbers of a rank in one world, and who has the state that all are to have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic.extending import RankAssignment


class Claim(NamedTuple):
    """What a rank says of its state as it enters a world.

    Attributes:
        has_state: Whether it has that of the training, rather than a new one.
        num_commits: How often it has committed.
        is_live: Whether its state is as it was, rather than the last that it committed.
        may_skip: Whether it was told that nobody comes.
        epoch: Of the world that it was in before; 0 for none.
    """

    has_state: bool
    num_commits: int
    is_live: bool
    may_skip: bool
    epoch: int


class Place(NamedTuple):
    """A rank's numbers.

    Attributes:
        order: Ranks of the process group, by rank: the first one has the state.
        rank: This one's.
        nodes: Of all ranks, by rank.
        skips_sync: Whether all ranks have the same state already.
    """

    order: tuple[int, ...]
    rank: int
    nodes: tuple[str, ...]
    skips_sync: bool

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.order)

    @property
    def local(self) -> tuple[int, int]:
        """This rank's number among those of its node, and how many there are."""
        here = [
            at for at, node in enumerate(self.nodes) if node == self.nodes[self.rank]
        ]
        return here.index(self.rank), len(here)

    @property
    def cross(self) -> tuple[int, int]:
        """This node's number among those that have this local rank, and how many."""
        number = self.local[0]
        seen: dict[str, int] = {}
        peers = []
        for at, node in enumerate(self.nodes):
            seen[node] = seen.get(node, -1) + 1
            if seen[node] == number:
                peers.append(at)
        return peers.index(self.rank), len(peers)


def agree_on_place(assignment: RankAssignment, claims: Sequence[Claim]) -> Place:
    """Returns the numbers of a rank, of which the first has the state for all others.

    Every rank finds the same, from the same claims; so nobody sends a state that others
    do not wait for. The state is not sent only if all ranks come from one world, and all
    were told that nobody joins them.

    Args:
        assignment: This rank's place in the process group.
        claims: Of all ranks, by rank of the process group.

    Example:
        >>> from drivetrain_elastic.extending import RankAssignment
        >>> assignment = RankAssignment(2, 0, ("a", "b"), ("n", "n"))
        >>> new, old = Claim(False, 0, True, False, 0), Claim(True, 7, True, True, 1)
        >>> agree_on_place(assignment, [new, old])
        Place(order=(1, 0), rank=1, nodes=('n', 'n'), skips_sync=False)
    """
    order = sorted(
        range(len(claims)),
        key=lambda at: (
            not claims[at].has_state,
            -claims[at].num_commits,
            not claims[at].is_live,
            at,
        ),
    )
    first = claims[order[0]]
    skips = all(
        one.has_state and one.is_live and one.may_skip and one.epoch == first.epoch
        for one in claims
    )
    return Place(
        order=tuple(order),
        rank=order.index(assignment.rank),
        nodes=tuple(assignment.nodes[at] for at in order),
        skips_sync=skips,
    )
