"""Learns what a stage really sends where its own ranks share a tensor between them.

Under tensor parallelism what crosses a boundary may be this rank's part of it, such as
the position bias of its own attention heads. The stages are run forwards once, and the
part is found per dimension; it holds for batches of other shapes as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from drivetrain_core.accelerators import isolated_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_parallel.pipeline.stage import StageModule


def may_send_parts(stages: Sequence[StageModule]) -> bool:
    """Returns whether other ranks hold parts of these stages' parameters.

    Args:
        stages: The stages of a rank.
    """
    return any(
        isinstance(parameter, DTensor)
        for stage in stages
        for parameter in stage.parameters()
    )


@torch.no_grad()
def learn_local_shapes(
    stages: Sequence[StageModule],
    batch: Any,
    *,
    owner: Callable[[int], int],
    group: dist.ProcessGroup,
    device: torch.device,
) -> None:
    """Runs this rank's stages forwards once, and tells the next what they send.

    Every rank of the job calls it at the same point. The stages have their
    micro-batches; the first is used.

    Args:
        stages: The stages of this rank, in order.
        batch: The first micro-batch.
        owner: Returns the rank in the group that holds a stage.
        group: The ranks along the pipeline.
        device: Where the stages are.
    """
    pending: list[Any] = []
    for stage in stages:
        index = stage.stage_index
        if not stage.is_first and owner(index - 1) != group.rank():
            expected = stage.input_shapes(batch)
            sizes = torch.zeros(
                sum(len(shape) for shape, _ in expected),
                dtype=torch.long,
                device=device,
            )
            dist.recv(sizes, group=group, group_src=owner(index - 1))
            numbers = iter(sizes.tolist())
            found = [tuple(next(numbers) for _ in shape) for shape, _ in expected]
            stage.shapes.learn(index - 1, batch, found)
        if stage.is_last:
            continue
        received = [
            torch.zeros(shape, dtype=dtype, device=device)
            for shape, dtype in stage.input_shapes(batch)
        ]
        with isolated_rng(), stage.unchecked():
            sent = stage(*received, index=torch.zeros(1, dtype=torch.long))
        shapes = [tuple(tensor.shape) for tensor in sent]
        stage.shapes.learn(index, batch, shapes)
        if owner(index + 1) != group.rank():
            sizes = torch.tensor([n for shape in shapes for n in shape], device=device)
            pending.append(dist.isend(sizes, group=group, group_dst=owner(index + 1)))
    for work in pending:
        work.wait()
