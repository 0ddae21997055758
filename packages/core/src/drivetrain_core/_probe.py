"""Reads the facts of a `Context` off the machine and the user's program."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import data as loading

from drivetrain_core._context import (
    BatchFacts,
    Context,
    DeviceFacts,
    LoopFacts,
    ModelFacts,
    WorldFacts,
)
from drivetrain_core._data.batch import (
    batch_signature,
    batch_size,
    num_tokens,
    tensors_of,
)
from drivetrain_core._data.open_handles import open_handle
from drivetrain_core._errors import PluginError, ProgramError
from drivetrain_core._model.blocks import find_blocks
from drivetrain_core._program import check_batch
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.machine_limits import num_cores

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_core._optimizer.source import OptimizerSource


def default_device() -> torch.device:
    """Returns this rank's accelerator when there is one, else the CPU."""
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None:
            rank, count = os.environ.get("LOCAL_RANK"), torch.accelerator.device_count()
            return torch.device(accelerator.type, int(rank or 0) % count)
    return torch.device("cpu")


def probe_device(device: torch.device) -> DeviceFacts:
    """Returns the facts of one device."""
    accelerator = accelerator_of(device)
    try:
        facts = accelerator.facts(device.index or 0)
        found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        message = f"{accelerator!r} tells no facts of {device}: {error!r}"
        raise PluginError(message) from error
    return DeviceFacts(
        **found, num_cores=num_cores(), num_threads=torch.get_num_threads()
    )


def probe_model(model: nn.Module) -> ModelFacts:
    """Returns the facts of a model, its tied parameters counted once."""
    parameters = list(model.parameters())
    modules = list(model.modules())
    return ModelFacts(
        kind=type(model).__name__,
        fingerprint=_fingerprint(model),
        num_parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        blocks=find_blocks(model),
        has_conv2d=any(isinstance(m, nn.Conv2d) for m in modules),
        has_batch_norm=any(isinstance(m, _BatchNorm) for m in modules),
        tied=_tied(model),
    )


def probe_batch(batch: Any) -> BatchFacts:
    """Returns the facts of one global batch.

    Raises:
        ProgramError: It holds no tensor with a batch dimension, or no sample.
    """
    check_batch(batch)
    size, signature = batch_size(batch), batch_signature(batch)
    if size < 1:
        message = f"a batch must hold samples, got one of {signature}"
        raise ProgramError(message)
    return BatchFacts(size=size, signature=signature, num_tokens=num_tokens(batch))


def probe_loop(
    source: OptimizerSource, data: Iterable[Any], batch: Any, *, owns_step: bool
) -> LoopFacts:
    """Returns the facts of the user's optimizer and loader."""
    loader, workers = "iterable", 0
    names = ("dataset", "sampler", "batch_sampler")
    parts = [data, *(getattr(data, name, None) for name in names)]
    if any(
        hasattr(p, "num_replicas") or "Distributed" in type(p).__name__ for p in parts
    ):
        loader = "sharded"
    # Only the class itself: a subclass may yield what its arguments do not tell.
    elif type(data) is loading.DataLoader:
        plain = type(data.sampler) in (loading.RandomSampler, loading.SequentialSampler)
        batched = type(data.batch_sampler) is loading.BatchSampler
        if plain and batched:
            loader = "torch"
        elif data.batch_sampler is not None and not isinstance(
            data.dataset, loading.IterableDataset
        ):
            loader = "indexed"
        workers = data.num_workers
    return LoopFacts(
        owns_step=owns_step,
        optimizer=source.kind.__name__,
        optimizer_options=frozenset(source.defaults),
        loader=loader,
        loader_workers=workers,
        open_handle=open_handle(getattr(data, "dataset", None)),
        sample_on_host=all(t.device.type == "cpu" for t in tensors_of(batch)),
    )


def probe_world() -> WorldFacts:
    """Returns the ranks of the process group that stands, or one rank.

    Workers of an elastic job have none yet, and share the node all the same.
    """
    size, rank = 1, 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    return WorldFacts(size=size, rank=rank, local_size=local_size)


def make_context(
    device: torch.device,
    model: nn.Module,
    batch: Any,
    source: OptimizerSource,
    data: Iterable[Any],
    *,
    owns_step: bool,
) -> Context:
    """Returns all facts of a program on this machine."""
    return Context(
        device=probe_device(device),
        model=probe_model(model),
        batch=probe_batch(batch),
        loop=probe_loop(source, data, batch, owns_step=owns_step),
        world=probe_world(),
    )


def _tied(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of names that share one parameter."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def is_lazy_model(model: nn.Module) -> bool:
    """Returns whether a parameter of a model has no shape before the first batch."""
    return any(isinstance(p, nn.UninitializedParameter) for p in model.parameters())


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(f"{name}:{type(module).__qualname__};".encode())
    for name, tensor in model.named_parameters(remove_duplicate=False):
        shape = tuple(tensor.shape)
        digest.update(f"{name}:{shape}:{tensor.dtype}:{tensor.requires_grad};".encode())
    for group in _tied(model):
        digest.update(f"{'='.join(group)};".encode())
    return digest.hexdigest()[:16]
