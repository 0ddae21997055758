"""Loads tensors by name from a checkpoint of any format."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_checkpoint._formats.detect import open_source
from drivetrain_core import CheckpointError, named_tensors
from drivetrain_core.extending import absent, shape_mismatch
from drivetrain_core.services import Restoration

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from drivetrain_core.services import TensorSpec


def load(
    path: str | os.PathLike[str],
    into: nn.Module | Mapping[str, Any],
    *,
    strict: bool = True,
    key: str | None = None,
    cast: bool = False,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Writes the tensors of a checkpoint into a model or a state dict, in place.

    Nothing is written before all of it was compared; each rank reads what its own shards
    need, without communication. Nothing that is read runs code.

    Args:
        path: A checkpoint of this package, or a folder of them; one of torch's
            distributed checkpoint; safetensors files; or a file of `torch.save`.
        into: A model, or tensors by name, nested or not; DTensors take their own block.
        strict: Whether every tensor must be both here and there, and fit. Otherwise what
            fits is loaded.
        key: What stands before the names in the checkpoint: with `key="model"` the
            tensor `model.weight` goes to `weight`, and the rest is left out.
        cast: Whether a tensor of another dtype fits, too.
        step: Which checkpoint of a folder of them; the one that was saved last by
            default.
        storage_options: For URLs, what fsspec is to know.

    Returns:
        What does not fit and was left as it is, one sentence each; empty if `strict`.

    Raises:
        CheckpointError: It does not fit; then its `mismatches` are all that does not,
            and nothing has been changed. Or there is none.
        ForeignCheckpointError: It is of no format that is read.
        CorruptCheckpointError: It is damaged.
        TypeError: `into` holds something that is no tensor.

    Example:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/state.pt"
        >>> torch.save({"model": nn.Linear(2, 1).state_dict(), "epoch": 3}, file)
        >>> load(file, nn.Linear(2, 1), key="model")
        []
        >>> load(file, {"weight": torch.ones(2)}, strict=False, key="model")
        ["'weight' is [2] torch.float32 here, but [1, 2] torch.float32 in the \
checkpoint", "'bias' is in the checkpoint, but not here"]
    """
    source = open_source(path, step=step, options=storage_options)
    prefix = f"{key}." if key else ""
    there = {
        name.removeprefix(prefix): spec
        for name, spec in source.tensors.items()
        if name.startswith(prefix)
    }
    ties = {
        name.removeprefix(prefix): of.removeprefix(prefix)
        for name, of in getattr(source, "ties", {}).items()
    }
    targets, copies, mismatches = _matched(_named(into), there, ties, cast=cast)
    if mismatches and strict:
        if not targets and not key and there:
            mismatches.append(_key_hint(there))
        summary = Restoration(mismatches=mismatches).summary()
        error = CheckpointError(f"{source.where}: {summary}")
        error.mismatches = tuple(mismatches)
        raise error
    source.fill({prefix + name: tensor for name, tensor in targets.items()})
    for tensor, of in copies:
        tensor.detach().copy_(of.detach())
    return mismatches


def _matched(
    here: Mapping[int, tuple[list[str], Tensor]],
    there: Mapping[str, TensorSpec],
    ties: Mapping[str, str],
    *,
    cast: bool,
) -> tuple[dict[str, Tensor], list[tuple[Tensor, Tensor]], list[str]]:
    """Returns the tensors that fit, by their names there, and what does not fit.

    In between are those that take a copy of another: they were one tensor there.
    """
    targets: dict[str, Tensor] = {}
    copies: list[tuple[Tensor, Tensor]] = []
    mismatches = []
    known: set[str] = set()
    for names, tensor in here.values():
        known.update(names)
        every = [*names, *(ties[name] for name in names if name in ties)]
        name = next((name for name in every if name in there), None)
        if name is None:
            mismatches.append(f"{names[0]!r} is here, but not in the checkpoint")
            continue
        spec = replace(there[name], dtype=tensor.dtype) if cast else there[name]
        known.add(name)
        problem = shape_mismatch(names[0], tensor, spec)
        if problem:
            mismatches.append(problem)
        elif targets.setdefault(name, tensor) is not tensor:
            copies.append((tensor, targets[name]))
    mismatches += absent((), [name for name in there if name not in known])
    return targets, copies, mismatches


def _named(into: nn.Module | Mapping[str, Any]) -> dict[int, tuple[list[str], Tensor]]:
    """Returns each tensor once, with all names that it goes by (tied weights)."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    if isinstance(into, nn.Module):
        for name, tensor in named_tensors(into).items():
            found[id(tensor)] = ([name], tensor)
        parts = [*into.named_parameters(remove_duplicate=False)]
        for name, tensor in [*parts, *into.named_buffers(remove_duplicate=False)]:
            if id(tensor) in found and name not in found[id(tensor)][0]:
                found[id(tensor)][0].append(name)
        return found
    for name, tensor in _leaves("", into):
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif hasattr(value, "items"):
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), part)
    else:
        message = (
            f"{name or 'into'} is a {type(value).__name__}: tensors are loaded, and "
            "nothing else; leave it out"
        )
        raise TypeError(message)


def _key_hint(there: Mapping[str, TensorSpec]) -> str:
    keys = sorted({name.partition(".")[0] for name in there})
    return f"no name is both here and there: is key= one of {', '.join(keys[:5])}?"
