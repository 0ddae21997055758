"""The state of an Accelerate program, saved in two stages.

Import this module to use it: it imports Accelerate.
"""

from __future__ import annotations

import logging
from typing import Any

# Annotations are resolved for the reference, which needs the classes themselves.
from drivetrain_checkpoint._checkpointer import Checkpointer  # noqa: TC001
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._save.handle import SaveHandle  # noqa: TC001
from drivetrain_checkpoint.adapters._random import random_states, set_random_states

try:
    from accelerate import Accelerator, DistributedType
    from accelerate.data_loader import SeedableRandomSampler
except ImportError as error:
    message = "needs Accelerate: pip install 'drivetrain-checkpoint[accelerate]'"
    raise ImportError(message) from error

__all__ = ["load_state", "save_state"]

logger = logging.getLogger(__name__)

_RANKS = "ranks"
_STEP = "accelerator_step"


def save_state(
    accelerator: Accelerator,
    checkpointer: Checkpointer,
    step: int,
    *,
    persist: bool = True,
) -> SaveHandle:
    """Copies what `accelerator.save_state` saves into memory; all processes call it.

    That is what was prepared (models, optimizers, schedulers, samplers, and the
    position of stateful data loaders), the scaler of gradients, what was registered for
    checkpointing, and the random number generators of every process; and also in which
    pass over its data each loader is, so that the next one is shuffled as it would be.

    Args:
        accelerator: The accelerator.
        checkpointer: Where to; one for all processes.
        step: The number of steps that the state has seen.
        persist: Whether storage follows, as in `Checkpointer.save`.

    Raises:
        ValueError: The accelerator shards in a way that only its own checkpoints hold.
        TypeError: An object that was registered has a state that is not plain data.

    Example:
        >>> import tempfile, torch
        >>> from drivetrain_checkpoint import Checkpointer
        >>> accelerator = Accelerator(cpu=True)
        >>> model = accelerator.prepare(torch.nn.Linear(2, 1))
        >>> checkpointer = Checkpointer(tempfile.mkdtemp(), job="doctest")
        >>> save_state(accelerator, checkpointer, 3).wait()
        True
        >>> load_state(accelerator, checkpointer)
        3
        >>> checkpointer.stop_daemon()
    """
    state = _shared(accelerator)
    ranks = RankGroup().all_gather(_own(accelerator))
    state[_STEP] = accelerator.step
    state[_RANKS] = {str(rank): own for rank, own in enumerate(ranks)}
    return checkpointer.save(step, state, persist=persist)


def load_state(
    accelerator: Accelerator, checkpointer: Checkpointer, step: int | None = None
) -> int:
    """Restores what `save_state` saved, in place; all processes call it.

    The same things must be prepared and registered, in the same order. There may be
    another number of processes: those that were not there before keep their random
    number generators and positions.

    Args:
        accelerator: The accelerator.
        checkpointer: Where from.
        step: The step; by default the one that was saved last.

    Returns:
        The step that was restored.

    Raises:
        CheckpointError: There is none, or it does not fit.
    """
    state = {**_shared(accelerator), _STEP: 0, _RANKS: {}}
    found = checkpointer.restore(state, step)
    accelerator.step = state[_STEP]
    own = state[_RANKS].get(str(accelerator.process_index))
    if own is None:
        logger.warning(
            "process %d was not there when step %d was saved: its random numbers and "
            "its position in the data are not restored",
            accelerator.process_index,
            found,
        )
        return found
    for index, loader in enumerate(accelerator._dataloaders):
        loader_state = own["loaders"][index]
        if hasattr(loader, "iteration"):
            loader.iteration = loader_state["pass"]
        sampler = _sampler(loader)
        if sampler is not None and "epoch" in loader_state:
            sampler.set_epoch(loader_state["epoch"])
            sampler.initial_seed = loader_state["initial_seed"]
        if "position" in loader_state:
            loader.load_state_dict(loader_state["position"])
    set_random_states(own["random"])
    return found


def _shared(accelerator: Accelerator) -> dict[str, Any]:
    """Returns what all processes have in common, or hold shards of."""
    refused = {DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM}
    if accelerator.distributed_type in refused:
        message = (
            f"{accelerator.distributed_type.value} keeps states that only its own "
            "checkpoints hold: use accelerator.save_state"
        )
        raise ValueError(message)
    parts = {
        "model": accelerator._models,
        # What wraps an optimizer gives no names to its state; it has none of its own.
        "optimizer": [o.optimizer for o in accelerator._optimizers],
        "scheduler": accelerator._schedulers,
        "custom": accelerator._custom_objects,
    }
    state = {
        f"{name}_{index}": part
        for name, found in parts.items()
        for index, part in enumerate(found)
    }
    if accelerator.scaler is not None:
        state["scaler"] = accelerator.scaler
    return state


def _own(accelerator: Accelerator) -> dict[str, Any]:
    """Returns what each process has for itself."""
    loaders = []
    for loader in accelerator._dataloaders:
        # The loader seeds its sampler with the number of the pass that it is in.
        found: dict[str, Any] = {"pass": getattr(loader, "iteration", 0)}
        sampler = _sampler(loader)
        if sampler is not None:
            found |= {"epoch": sampler.epoch, "initial_seed": sampler.initial_seed}
        if getattr(loader, "use_stateful_dataloader", False):
            found["position"] = loader.state_dict()
        loaders.append(found)
    return {"loaders": loaders, "random": random_states()}


def _sampler(loader: Any) -> Any:
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    return sampler if isinstance(sampler, SeedableRandomSampler) else None
