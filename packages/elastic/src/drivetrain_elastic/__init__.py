"""PyTorch training that outlives its machines.

Importing this package does not import torch; the first use of what needs it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export
from drivetrain_core.moved import forward_modules as _forward_modules

if TYPE_CHECKING:
    from drivetrain_elastic._agent._agent import Agent
    from drivetrain_elastic._agent._config import AgentConfig
    from drivetrain_elastic._client._master_client import MasterError, RefusedError
    from drivetrain_elastic._data._sampler import ElasticDistributedSampler
    from drivetrain_elastic._data._schedule import Schedule
    from drivetrain_elastic._data._shard_client import LostLeaseError, ShardClient
    from drivetrain_elastic._master._master import Master
    from drivetrain_elastic._training._batch_scaling import BatchScaling
    from drivetrain_elastic._training._loop import ElasticLoop
    from drivetrain_elastic._training._step import Step
    from drivetrain_elastic._version import __version__

__all__ = [
    "Agent",
    "AgentConfig",
    "BatchScaling",
    "ElasticDistributedSampler",
    "ElasticLoop",
    "LostLeaseError",
    "Master",
    "MasterError",
    "RefusedError",
    "Schedule",
    "ShardClient",
    "Step",
    "__version__",
]

_HOMES = {
    "__version__": "_version",
    "Agent": "_agent._agent",
    "AgentConfig": "_agent._config",
    "BatchScaling": "_training._batch_scaling",
    "ElasticDistributedSampler": "_data._sampler",
    "ElasticLoop": "_training._loop",
    "LostLeaseError": "_data._shard_client",
    "Master": "_master._master",
    "MasterError": "_client._master_client",
    "RefusedError": "_client._master_client",
    "Schedule": "_data._schedule",
    "ShardClient": "_data._shard_client",
    "Step": "_training._step",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


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


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
