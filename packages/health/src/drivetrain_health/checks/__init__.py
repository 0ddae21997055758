"""Whether a node is fit to train: measured alone, together with others, and bit by bit.

`check_node` measures the node that it runs on. `check_nodes` is called on all nodes at once:
they meet at a store, are checked in small groups, and all come to the same verdict, which
names who is faulty or slow. Each measurement is a process of its own, which is killed at its
time limit; what hangs costs that measurement, and is a finding.

Importing this package does not import torch.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_health.checks._bench import Bench, BenchResult
    from drivetrain_health.checks._check_config import CheckConfig
    from drivetrain_health.checks._check_node import NodeReport, check_node
    from drivetrain_health.checks._check_nodes import (
        Together,
        check_nodes,
        check_together,
    )
    from drivetrain_health.checks._checks import CHECKS
    from drivetrain_health.checks._silent_corruption import BitReport, probe_bits
    from drivetrain_health.checks._tcp_rendezvous_store import tcp_rendezvous_store

__all__ = [
    "CHECKS",
    "Bench",
    "BenchResult",
    "BitReport",
    "CheckConfig",
    "NodeReport",
    "Together",
    "check_node",
    "check_nodes",
    "check_together",
    "probe_bits",
    "tcp_rendezvous_store",
]

_HOMES = {
    "Bench": "_bench",
    "BenchResult": "_bench",
    "BitReport": "_silent_corruption",
    "CHECKS": "_checks",
    "CheckConfig": "_check_config",
    "NodeReport": "_check_node",
    "Together": "_check_nodes",
    "check_node": "_check_node",
    "check_nodes": "_check_nodes",
    "check_together": "_check_nodes",
    "probe_bits": "_silent_corruption",
    "tcp_rendezvous_store": "_tcp_rendezvous_store",
}


# Names of version 0.1, which go away in the next one.
_RENAMED = {"tcp_meeting": "tcp_rendezvous_store"}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    if name in _RENAMED:
        message = f"{__name__}.{name} is now {_RENAMED[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
