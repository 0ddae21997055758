"""What data parallelism around a stage must be like for a schedule to be exact."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from drivetrain_parallel.torch_internals import is_replicated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

logger = logging.getLogger(__name__)


def wrapping_problem(stages: Sequence[nn.Module]) -> str:
    """Returns why a schedule would get gradients of these stages wrong; empty if not.

    Args:
        stages: The stages of a rank, as a schedule calls them.
    """
    for stage in stages:
        for name, module in stage.named_modules():
            if isinstance(module, DistributedDataParallel):
                return (
                    f"{name or 'a stage'} is wrapped by DistributedDataParallel, which "
                    "breaks in the second step of a pipeline; use FSDP2 or replicate"
                )
            if isinstance(module, FSDPModule) and not isinstance(stage, FSDPModule):
                return (
                    f"{name} is wrapped by {type(module).__mro__[1].__name__} and the "
                    "stage around it is not, so its gradients would not be reduced; "
                    "wrap the StageModule last"
                )
    return ""


def keep_gathered(stages: Sequence[nn.Module]) -> None:
    """Keeps the parameters of FSDP2 whole from the forward of a stage to its backward.

    A schedule that runs the gradients of weights apart looks for the weights among the
    parameters before that. Shards are there instead where a block has been resharded
    after its forward, and its weights then get no gradient, without an error.

    Args:
        stages: The stages of a rank.
    """
    for stage in stages:
        if isinstance(stage, FSDPModule) and not is_replicated(stage):
            stage.set_reshard_after_forward(False)
            logger.info("the schedule keeps the parameters of its stages gathered")
