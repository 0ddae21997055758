"""One rule of a table: which collectives it is for, and what NCCL is to use for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain_comm.nccl._errors import NcclTableError

# The place of a name is its number in NCCL.
COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""The collectives that NCCL asks a tuner about."""

ALGORITHMS = (
    "tree",
    "ring",
    "collnet_direct",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)
"""NCCL's algorithms."""

PROTOCOLS = ("ll", "ll128", "simple")
"""NCCL's protocols."""

MOST_BYTES = 2**63 - 1
LIMITS = {"ranks": 2**31 - 1, "nodes": 2**31 - 1, "channels": 64}
LIMITS["num_pipe_ops"] = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What NCCL is to use for some collectives.

    Args:
        collective: One of `COLLECTIVES`.
        algorithm: One of `ALGORITHMS`.
        protocol: One of `PROTOCOLS`.
        begin_bytes: The least size. Sizes are those of the whole: what an all-gather
            returns, what a reduce-scatter takes.
        end_bytes: The size from which on it holds no more; None for no end.
        ranks: Of the communicator; None for any number.
        nodes: Of the communicator; None for any number.
        channels: How many NCCL is to use; None leaves that to NCCL. Not for CollNet, nor
            for NVLS on several nodes.
        num_pipe_ops: How many collectives NCCL has merged into one; None for any number.
        reg_buff: Whether buffers are registered; None for either.

    Raises:
        NcclTableError: A value is out of range.

    Example:
        >>> rule = Rule(collective="all_reduce", algorithm="tree", protocol="ll",
        ...     end_bytes=65536, ranks=16, nodes=2)
        >>> rule.decides("all_reduce", 1024, ranks=16, nodes=2)
        True
    """

    collective: str
    algorithm: str
    protocol: str
    begin_bytes: int = 0
    end_bytes: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    channels: int | None = None
    num_pipe_ops: int | None = None
    reg_buff: bool | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, known in (
            ("collective", COLLECTIVES),
            ("algorithm", ALGORITHMS),
            ("protocol", PROTOCOLS),
        ):
            value = getattr(self, name)
            if value not in known:
                _refuse(wanted_name(name, known), value)
        for name, most in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not (_is_whole(value) and 1 <= value <= most):
                _refuse(wanted_number(name), value)
        for name in ("begin_bytes", "end_bytes"):
            value = getattr(self, name)
            if value is None and name == "end_bytes":
                continue
            if not (_is_whole(value) and 0 <= value <= MOST_BYTES):
                _refuse(f"{name} must be a number from 0 to {MOST_BYTES}", value)
        if self.end_bytes is not None and self.end_bytes <= self.begin_bytes:
            message = f"end_bytes must be more than {self.begin_bytes}"
            _refuse(message, self.end_bytes)
        if self.reg_buff not in (None, False, True):
            _refuse("reg_buff must be False or True", self.reg_buff)
        if self.ranks and self.nodes and self.nodes > self.ranks:
            message = f"{self.ranks} ranks cannot be on {self.nodes} nodes"
            raise NcclTableError(message)
        wrong = channels_refusal(self.algorithm, self.nodes)
        if self.channels is not None and wrong is not None:
            raise NcclTableError(wrong)

    def decides(
        self,
        collective: str,
        size_bytes: int,
        *,
        ranks: int,
        nodes: int,
        num_pipe_ops: int = 1,
        reg_buff: bool = False,
    ) -> bool:
        """Returns whether it is for a collective; the arguments are its own fields."""
        met = ((self.ranks, ranks), (self.nodes, nodes), (self.reg_buff, reg_buff))
        return (
            collective == self.collective
            and self.begin_bytes <= size_bytes
            and (self.end_bytes is None or size_bytes < self.end_bytes)
            and all(mine in {None, value} for mine, value in met)
            and self.num_pipe_ops in {None, num_pipe_ops}
        )


def channels_refusal(algorithm: str, nodes: int | None) -> str | None:
    """Returns why channels cannot be set, or None if they can.

    NCCL 2.24 to 2.32 take the channels of some algorithms as they are, even if they are
    more than the communicator has, which would use memory that nobody has set up.

    Args:
        algorithm: One of `ALGORITHMS`.
        nodes: Of the communicator; None for any number.

    Example:
        >>> channels_refusal("ring", None)
        >>> channels_refusal("nvls", None)
        'channels can be set for nvls on 1 node only: NCCL does not check them'
    """
    if algorithm in {"collnet_direct", "collnet_chain"}:
        return f"channels cannot be set for {algorithm}, where NCCL does not check them"
    if algorithm == "nvls" and nodes != 1:
        return "channels can be set for nvls on 1 node only: NCCL does not check them"
    return None


def wanted_name(name: str, known: tuple[str, ...]) -> str:
    """Returns what a name must be, as messages say it."""
    return f"the {name} must be one of {', '.join(known)}"


def wanted_number(name: str) -> str:
    """Returns what a number must be, as messages say it."""
    return f"{name} must be a number from 1 to {LIMITS[name]}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(wanted: str, value: Any) -> None:
    message = f"{wanted}, got {value!r}"
    raise NcclTableError(message)
