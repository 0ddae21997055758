"""What a training step sends: phases of flows between the nodes of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._traffic import (
    Flows,
    all_gather,
    all_reduce,
    all_to_all,
    channels,
    reduce_scatter,
    send,
    tree_all_reduce,
)

if TYPE_CHECKING:
    from drivetrain_fabric.network._clos import IntArray

_DEGREES = ("tensor", "pipeline")
COLLECTIVES = ("all-reduce", "tree", "all-gather", "reduce-scatter", "all-to-all")


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Flows that run together, between the nodes of a job as if they were the fabric's.

    Args:
        name: What they are for.
        flows: The flows.
        is_paced: Whether its slowest flow sets the pace of all, as in a ring; else each
            flow that ends leaves its share to others.
    """

    name: str
    flows: Flows
    is_paced: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job that is tensor, data and pipeline parallel, in this order of its ranks.

    Args:
        num_gpus: The ranks.
        gpus_per_node: How many of them share a node.
        nics_per_node: How many network cards they share evenly; the first GPUs use the
            first, and a GPU with several, or with a part of one, sends as much by each.
        tensor: The size of a tensor-parallel group, which stays in a node.
        pipeline: The number of pipeline stages.
        gradient_bytes: The gradients of one rank, all-reduced among its replicas.
        activation_bytes: What a rank sends to the next stage in one step, and gets
            back as gradients.

    Raises:
        FabricError: The sizes do not divide each other, or are not positive.

    Example:
        >>> job = Job(num_gpus=64, tensor=8, pipeline=2, gradient_bytes=1e9,
        ...           activation_bytes=1e8)
        >>> job.data, [(phase.name, len(phase.flows)) for phase in job.phases()]
        (4, [('data', 64), ('pipeline', 64)])
    """

    num_gpus: int
    gpus_per_node: int = 8
    nics_per_node: int = 8
    tensor: int = 8
    pipeline: int = 1
    gradient_bytes: float
    activation_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Checks that the sizes divide each other."""
        for name in ("num_gpus", "gpus_per_node", "nics_per_node", *_DEGREES):
            if getattr(self, name) < 1:
                message = f"{name} must be at least 1, got {getattr(self, name)}"
                raise FabricError(message)
        for name, what, parts in (
            ("num_gpus", "gpus_per_node", self.gpus_per_node),
            ("gpus_per_node", "tensor", self.tensor),
            ("num_gpus", " x ".join(_DEGREES), self.tensor * self.pipeline),
        ):
            size = getattr(self, name)
            if size % parts:
                message = (
                    f"{name} must be a multiple of {what}, which is {parts}, got {size}"
                )
                raise FabricError(message)

    @property
    def data(self) -> int:
        """Returns the number of replicas."""
        return self.num_gpus // (self.tensor * self.pipeline)

    @property
    def num_nodes(self) -> int:
        """Returns the number of nodes."""
        return self.num_gpus // self.gpus_per_node

    def phases(self) -> tuple[Phase, ...]:
        """Returns what the job sends in a step: gradients, and activations of stages.

        One comes after the other, and neither is hidden behind computation.
        """
        ranks = np.arange(self.num_gpus).reshape(self.pipeline, self.data, self.tensor)
        nics = self._nics(ranks)
        # Replicas that share a node leave it by all of their cards, a channel each.
        together = math.gcd(self.data, self.gpus_per_node // self.tensor)
        groups = nics.swapaxes(2, 3).reshape(-1, self.data // together, together)
        rings = groups.transpose(0, 2, 1).reshape(-1, self.data // together)
        part = self.gradient_bytes / together / len(nics)
        data = all_reduce(rings, part, num_ranks=self.data)
        phases = [Phase(name="data", flows=data)]
        if self.pipeline > 1:
            before, after = nics[:, :-1].ravel(), nics[:, 1:].ravel()
            part = self.activation_bytes / len(nics)
            both = send(before, after, part), send(after, before, part)
            phases.append(Phase(name="pipeline", flows=Flows.join(both)))
        return tuple(phases)

    def _nics(self, ranks: IntArray) -> IntArray:
        """Returns the card of each channel of each rank, channels first."""
        each = math.lcm(self.gpus_per_node, self.nics_per_node)
        channel = np.arange(each // self.gpus_per_node).reshape(-1, 1, 1, 1)
        local = ranks % self.gpus_per_node * len(channel) + channel
        local = local * self.nics_per_node // each
        return ranks // self.gpus_per_node * self.nics_per_node + local


def collective(
    name: str,
    *,
    num_nodes: int,
    nics_per_node: int,
    size_bytes: float,
    num_ranks: int | None = None,
) -> Phase:
    """Returns one collective of all ranks, spread over the network cards.

    Args:
        name: One of `COLLECTIVES`.
        num_nodes: The nodes.
        nics_per_node: The network cards of a node, each a channel.
        size_bytes: The vector of one rank.
        num_ranks: How many ranks there are; by default one for each node.

    Raises:
        FabricError: The name is not known, or a number makes no sense.

    Example:
        >>> phase = collective("all-reduce", num_nodes=4, nics_per_node=2, size_bytes=8)
        >>> len(phase.flows), float(phase.flows.size_bytes[0])
        (8, 6.0)
    """
    if name not in COLLECTIVES:
        message = f"traffic must be one of {', '.join(COLLECTIVES)}, got {name!r}"
        raise FabricError(message)
    members = channels(num_nodes, nics_per_node)
    ranks = num_nodes if num_ranks is None else num_ranks
    if ranks < 1 or ranks % num_nodes:
        message = f"num_ranks must be a multiple of {num_nodes} nodes, got {ranks}"
        raise FabricError(message)
    part = size_bytes / nics_per_node
    if name == "tree":
        flows = tree_all_reduce(members, part)
    elif name == "all-to-all":
        # Each rank of a node sends to each of another.
        flows = all_to_all(members, part * ranks / num_nodes)
    else:
        ring = {
            "all-reduce": all_reduce,
            "all-gather": all_gather,
            "reduce-scatter": reduce_scatter,
        }[name]
        flows = ring(members, part, num_ranks=ranks)
    return Phase(name=name, flows=flows, is_paced=name != "all-to-all")
