"""What follows from facts, one subject a file, each a pure function.

Each setting belongs to one rule, so that no two of them can contradict each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._buffers import advise_buffers
from drivetrain_fabric.adviser._rules._congestion import advise_congestion
from drivetrain_fabric.adviser._rules._ctas import advise_ctas
from drivetrain_fabric.adviser._rules._ecmp import advise_ecmp
from drivetrain_fabric.adviser._rules._efa import advise_efa
from drivetrain_fabric.adviser._rules._erdma import advise_erdma
from drivetrain_fabric.adviser._rules._gids import advise_gids
from drivetrain_fabric.adviser._rules._gpudirect import advise_gpudirect
from drivetrain_fabric.adviser._rules._init import advise_init
from drivetrain_fabric.adviser._rules._interfaces import advise_interfaces
from drivetrain_fabric.adviser._rules._kernel import advise_kernel
from drivetrain_fabric.adviser._rules._nics import advise_nics
from drivetrain_fabric.adviser._rules._rdma import advise_rdma
from drivetrain_fabric.adviser._rules._sockets import advise_sockets
from drivetrain_fabric.adviser._rules._torch import advise_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

__all__ = ["RULES"]

RULES: tuple[Callable[[Facts], list[Advice | Gap]], ...] = (
    advise_interfaces,
    advise_sockets,
    advise_kernel,
    advise_buffers,
    advise_nics,
    advise_rdma,
    advise_gids,
    advise_ecmp,
    advise_congestion,
    advise_gpudirect,
    advise_erdma,
    advise_efa,
    advise_init,
    advise_ctas,
    advise_torch,
)
