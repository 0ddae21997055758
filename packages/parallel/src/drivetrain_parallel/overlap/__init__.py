"""Communication that goes on while the device computes.

Tensor parallel: `all_gather_matmul`, `matmul_reduce_scatter`, and the parallel styles
that use them. Sharded data parallel: `prefetch_first_unshard`. Pipelines:
`DecoupledSchedule1F1B`. Results are exact; what changes is when bytes travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_parallel.overlap._errors import OverlapError
    from drivetrain_parallel.overlap._first_unshard import (
        FirstUnshardLoader,
        prefetch_first_unshard,
    )
    from drivetrain_parallel.overlap._schedule_1f1b import DecoupledSchedule1F1B
    from drivetrain_parallel.overlap._styles import (
        OverlappedColwiseParallel,
        OverlappedRowwiseParallel,
    )
    from drivetrain_parallel.overlap._tensor_parallel import (
        all_gather_matmul,
        matmul_reduce_scatter,
    )

__all__ = [
    "DecoupledSchedule1F1B",
    "FirstUnshardLoader",
    "OverlapError",
    "OverlappedColwiseParallel",
    "OverlappedRowwiseParallel",
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "prefetch_first_unshard",
]

_HOMES = {
    "DecoupledSchedule1F1B": "_schedule_1f1b",
    "FirstUnshardLoader": "_first_unshard",
    "OverlapError": "_errors",
    "OverlappedColwiseParallel": "_styles",
    "OverlappedRowwiseParallel": "_styles",
    "all_gather_matmul": "_tensor_parallel",
    "matmul_reduce_scatter": "_tensor_parallel",
    "prefetch_first_unshard": "_first_unshard",
}


def __getattr__(name: str) -> Any:
    """Imports the part of torch that is asked for: FSDP, DTensor or pipelining."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
