"""PyTorch training that outlives its machines.

Importing this package does not import torch; the first use of what needs it does.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub
from drivetrain_core.moved import forward_modules as _forward_modules

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)

_forward_modules(
    {
        **{
            f"drivetrain_elastic.decisions.{name}": f"drivetrain_health.decisions.{name}"
            for name in ("node_check", "node_pairs", "node_results", "node_simulation")
        },
        **{
            f"drivetrain_elastic.{name}": f"drivetrain_cloud.{name}"
            for name in ("cost", "goodput", "kubernetes", "notices", "spot")
        },
        "drivetrain_elastic.decisions.failures": "drivetrain_health.failures",
        "drivetrain_elastic.diagnosis": "drivetrain_health.diagnosis",
        "drivetrain_elastic.faults": "drivetrain_health.faults",
        "drivetrain_elastic.health": "drivetrain_health.checks",
        "drivetrain_elastic.horovod": "drivetrain_horovod.on_elastic",
        "drivetrain_elastic.kubernetes.double": "drivetrain_cluster_double",
    }
)
