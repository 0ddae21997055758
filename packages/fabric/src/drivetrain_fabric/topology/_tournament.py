"""Who meets whom: all pairs of some players, in rounds in which each plays once."""

from __future__ import annotations


def tournament(num_players: int) -> list[list[tuple[int, int]]]:
    """Returns the pairs of each round: one round less than players, if they are even.

    All but the first player move on by one seat around a table after each round. Where
    players are odd, one pauses.

    Args:
        num_players: How many play.

    Example:
        >>> tournament(4)
        [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats = num_players + num_players % 2
    rounds = []
    for turn in range(seats - 1):
        table = [0, *((i - turn) % (seats - 1) + 1 for i in range(seats - 1))]
        faced = zip(table[: seats // 2], reversed(table[seats // 2 :]), strict=True)
        pairs = (sorted(pair) for pair in faced)
        rounds.append(sorted((a, b) for a, b in pairs if b < num_players))
    return rounds
