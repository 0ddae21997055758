"""The functions of `horovod.torch` that elastic scripts use, on worlds that change.

A script changes one line, `import drivetrain_horovod.on_elastic as hvd`, or none: `python -m
drivetrain_horovod.on_elastic SCRIPT` lets it import `horovod.torch`. `elastic` has `run`,
`TorchState` and `ElasticSampler`. The agents of `drivetrain-elastic run` say who is there.

Unlike Horovod, which sorts collectives by name, ranks call them in the same order.
"""

from drivetrain_horovod.compression import Compression
from drivetrain_horovod.on_elastic import elastic
from drivetrain_horovod.on_elastic._basics import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from drivetrain_horovod.on_elastic._collectives import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    allreduce_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from drivetrain_horovod.on_elastic._errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    NotInitializedError,
)
from drivetrain_horovod.on_elastic._optimizer import DistributedOptimizer

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "NotInitializedError",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "elastic",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
