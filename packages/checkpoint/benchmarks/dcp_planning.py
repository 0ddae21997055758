"""What DCP's planner costs the first rank of a save, measured small and extrapolated.

One process makes the plans that the ranks would send, one shard of each tensor a rank,
and does with them what the coordinator does: it unpickles them, makes the global plan, and
pickles `.metadata`. All three grow with the number of ranks times tensors, by which they
are extrapolated from the largest number of ranks that was measured.
"""

import pickle
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from workload import timed


@dataclass(frozen=True)
class PlannerCost:
    """Seconds of the coordinator, and bytes: a rank's plan, and `.metadata`."""

    num_ranks: int
    coordinator_s: float
    plan_bytes: int
    metadata_bytes: int

    def extrapolated(self, num_ranks):
        """The cost for more ranks, in proportion."""
        factor = num_ranks / self.num_ranks
        return PlannerCost(
            num_ranks=num_ranks,
            coordinator_s=self.coordinator_s * factor,
            plan_bytes=self.plan_bytes,
            metadata_bytes=int(self.metadata_bytes * factor),
        )


def planner_cost(num_tensors, num_ranks):
    """The cost of a save that no plan is kept for."""
    texts = [
        pickle.dumps(_plan(num_tensors, rank, num_ranks)) for rank in range(num_ranks)
    ]
    found = {}

    def coordinate():
        plans = [pickle.loads(text) for text in texts]
        planner = DefaultSavePlanner()
        planner.set_up_planner({}, is_coordinator=True)
        _, metadata = planner.create_global_plan(plans)
        found["metadata"] = pickle.dumps(metadata)

    seconds = min(timed(coordinate) for _ in range(3))
    return PlannerCost(num_ranks, seconds, len(texts[-1]), len(found["metadata"]))


def _plan(num_tensors, rank, num_ranks):
    """A rank's plan of tensors of 16 columns, four rows of each its own."""
    rows, columns = 4, 16
    items = []
    for i in range(num_tensors):
        name = f"model.layers.{i}.attention.weight"
        offset = torch.Size((rank * rows, 0))
        chunk = ChunkStorageMetadata(offsets=offset, sizes=torch.Size((rows, columns)))
        data = TensorWriteData(
            chunk=chunk,
            properties=TensorProperties(dtype=torch.float32),
            size=torch.Size((num_ranks * rows, columns)),
        )
        index = MetadataIndex(name, offset)
        items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
    return SavePlan(items, planner_data={})
