"""Whether a node is fit to train: measured alone, together with others, and bit by bit.

`check_node` measures the node that it runs on. `check_nodes` is called on all nodes at once:
they meet at a store, are checked in small groups, and all come to the same verdict, which
names who is faulty or slow. Each measurement is a process of its own, which is killed at its
time limit; what hangs costs that measurement, and is a finding.

Importing this package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_elastic.health._check_config import CheckConfig
    from drivetrain_elastic.health._check_node import NodeReport, check_node
    from drivetrain_elastic.health._check_nodes import check_nodes
    from drivetrain_elastic.health._checks import CHECKS
    from drivetrain_elastic.health._silent_corruption import BitReport, probe_bits

__all__ = [
    "CHECKS",
    "BitReport",
    "CheckConfig",
    "NodeReport",
    "check_node",
    "check_nodes",
    "probe_bits",
]

_HOMES = {
    "BitReport": "_silent_corruption",
    "CHECKS": "_checks",
    "CheckConfig": "_check_config",
    "NodeReport": "_check_node",
    "check_node": "_check_node",
    "check_nodes": "_check_nodes",
    "probe_bits": "_silent_corruption",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
