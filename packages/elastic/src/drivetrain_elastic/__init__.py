"""PyTorch training that outlives its machines.

Importing this package does not import torch; the first use of what needs it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_elastic._client import MasterError, RefusedError
    from drivetrain_elastic._master._master import Master
    from drivetrain_elastic._sampler import ElasticDistributedSampler
    from drivetrain_elastic._shard_client import LostLeaseError, ShardClient
    from drivetrain_elastic._version import __version__

__all__ = [
    "ElasticDistributedSampler",
    "LostLeaseError",
    "Master",
    "MasterError",
    "RefusedError",
    "ShardClient",
    "__version__",
]

_HOMES = {
    "__version__": "_version",
    "ElasticDistributedSampler": "_sampler",
    "LostLeaseError": "_shard_client",
    "Master": "_master._master",
    "MasterError": "_client",
    "RefusedError": "_client",
    "ShardClient": "_shard_client",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
