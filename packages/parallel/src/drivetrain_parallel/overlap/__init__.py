"""Communication that goes on while the device computes.

Tensor parallel: `all_gather_matmul`, `matmul_reduce_scatter`, and the parallel styles
that use them. Sharded data parallel: `prefetch_first_unshard`. Pipelines:
`DecoupledSchedule1F1B`. Results are exact; what changes is when bytes travel.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
