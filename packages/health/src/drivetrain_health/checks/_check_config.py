"""What is checked on nodes, and for how long."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_core.machine_limits import num_cores
from drivetrain_health.checks._checks import CHECKS
from drivetrain_health.decisions.node_results import NodeCheckConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckConfig:
    """What is checked on nodes, and for how long. All nodes need the same.

    Args:
        checks: Which, by their names in `CHECKS`; by default all.
        measure_s: How long each measures.
        limit_s: After how long each is killed, that of RDMA, which goes over many ways,
            after four times as long. What hangs takes as long.
        round_s: How long nodes wait for each other in a round. A node makes no more
            checks when nine tenths of it are over.
        join_s: How long nodes that are there wait for the others.
        num_threads: Of the CPU that compute; by default as many as this process may use.
        memory_bytes: What a measurement that uses no GPU may have of memory, beside what
            its process begins with.
        folder: Where a small file is written and read; None for nowhere, by default where
            temporary files are.
        address: Of this node, as others see it; by default what its name stands for.
        switches: Under which switch nodes are, as far as it is known.
        judging: How results are judged.

    Raises:
        ProgramError: A value is out of range, or there is no such check or folder.
    """

    checks: tuple[str, ...] = tuple(CHECKS)
    measure_s: float = 0.5
    limit_s: float = 30.0
    round_s: float = 180.0
    join_s: float = 60.0
    num_threads: int = field(default_factory=num_cores)
    memory_bytes: int = 4 << 30
    folder: str | None = field(default_factory=tempfile.gettempdir)
    address: str | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    judging: NodeCheckConfig = field(default_factory=NodeCheckConfig)

    def __post_init__(self) -> None:
        """Checks the values."""
        unknown = [name for name in self.checks if name not in CHECKS]
        if unknown or not self.checks:
            message = (
                f"checks must be one or more of {', '.join(CHECKS)}, got "
                f"{', '.join(unknown) or 'none'}"
            )
            raise ProgramError(message)
        for name, least in (
            ("measure_s", 0.01),
            ("limit_s", 0.1),
            ("round_s", 0.1),
            ("join_s", 0.0),
            ("num_threads", 1),
            ("memory_bytes", 1 << 28),
        ):
            value = getattr(self, name)
            # NaN is neither less nor more, and nothing here may last for ever.
            if not least <= value < float("inf"):
                message = f"{name} must be a number of at least {least}, got {value}"
                raise ProgramError(message)
        if self.limit_s <= self.measure_s:
            message = (
                f"limit_s must be more than measure_s, got {self.limit_s} and "
                f"{self.measure_s}"
            )
            raise ProgramError(message)
        if self.round_s <= self.limit_s:
            message = (
                f"round_s must be more than limit_s, and enough for all checks, got "
                f"{self.round_s} and {self.limit_s}"
            )
            raise ProgramError(message)
        if self.folder is not None and not Path(self.folder).is_dir():
            message = f"folder must be a folder that exists, got {self.folder!r}"
            raise ProgramError(message)
