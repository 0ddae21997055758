"""A table: rules of which no two decide the same call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from drivetrain_comm.nccl._errors import NcclTableError
from drivetrain_comm.nccl._overlap import find_overlap
from drivetrain_comm.nccl._rule import ALGORITHMS, COLLECTIVES, PROTOCOLS, Rule

_NO_END = 2**64 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What NCCL is to use; where no rule holds, it decides as without a table.

    Args:
        rules: In any order.

    Raises:
        NcclTableError: Two rules would both decide some call.

    Example:
        >>> table = Table(rules=(
        ...     Rule(collective="all_reduce", algorithm="tree", protocol="ll",
        ...         end_bytes=65536),))
        >>> table.find("all_reduce", 1024, ranks=8, nodes=1).algorithm
        'tree'
        >>> table.hash[:8]
        'f8867daa'
    """

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        """Checks the rules."""
        places = find_overlap(self.rules)
        if places is not None:
            earlier, later = places
            message = f"rule {later} overlaps rule {earlier}, counted from 0"
            raise NcclTableError(message)

    @property
    def hash(self) -> str:
        """The SHA-256 of the rules, whatever their order and the layout of a file.

        The plug-in computes the same.
        """
        lines = (" ".join(map(str, one)) for one in sorted(map(_numbers, self.rules)))
        text = "".join(f"{line}\n" for line in ("drivetrain-nccl-table 1", *lines))
        return hashlib.sha256(text.encode()).hexdigest()

    def find(
        self,
        collective: str,
        size_bytes: int,
        *,
        ranks: int,
        nodes: int,
        num_pipe_ops: int = 1,
        reg_buff: bool = False,
    ) -> Rule | None:
        """Returns the rule that decides a collective, or None where NCCL does.

        Args:
            collective: One of `COLLECTIVES`.
            size_bytes: Of the whole: what an all-gather returns, a reduce-scatter takes.
            ranks: Of the communicator.
            nodes: Of the communicator.
            num_pipe_ops: How many collectives are merged into this one.
            reg_buff: Whether the buffers are registered.
        """
        for rule in self.rules:
            if rule.decides(
                collective,
                size_bytes,
                ranks=ranks,
                nodes=nodes,
                num_pipe_ops=num_pipe_ops,
                reg_buff=reg_buff,
            ):
                return rule
        return None


def _numbers(rule: Rule) -> tuple[int, ...]:
    def condition(value: int | None) -> int:
        return 0 if value is None else int(value) + 1

    return (
        COLLECTIVES.index(rule.collective),
        rule.begin_bytes,
        _NO_END if rule.end_bytes is None else rule.end_bytes - 1,
        condition(rule.ranks),
        condition(rule.nodes),
        ALGORITHMS.index(rule.algorithm),
        PROTOCOLS.index(rule.protocol),
        rule.channels or 0,
        condition(rule.num_pipe_ops),
        condition(rule.reg_buff),
    )
