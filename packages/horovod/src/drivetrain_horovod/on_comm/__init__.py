"""The functions of `horovod.torch`, on tuned process groups.

A script changes one line: `import drivetrain_horovod.on_comm as hvd`.

Unlike Horovod, which sorts collectives by name, ranks call them in the same order; a
name only has to be unique among those under way.
"""

from drivetrain_horovod.compression import Compression
from drivetrain_horovod.on_comm._allreduce import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from drivetrain_horovod.on_comm._broadcast import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from drivetrain_horovod.on_comm._exchange import (
    allgather,
    allgather_async,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    join,
    reducescatter,
)
from drivetrain_horovod.on_comm._handles import poll, synchronize
from drivetrain_horovod.on_comm._optimizer import DistributedOptimizer
from drivetrain_horovod.on_comm._process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from drivetrain_horovod.on_comm._state import (
    NotInitializedError,
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

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "NotInitializedError",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "synchronize",
]
