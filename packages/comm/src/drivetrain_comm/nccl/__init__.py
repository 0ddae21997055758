"""NCCL's choice of algorithm and protocol, by a table that was made from measurements.

A plug-in, which NCCL itself loads, follows the table; `enable_tuner` makes all ranks use
the same. `table_from` makes a table out of a benchmark. Only `enable_tuner` needs torch,
and that only where ranks must meet.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
