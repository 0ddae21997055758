"""The state of a program over a mesh as nested dictionaries, as torch has them.

They have the names of the model as written on every rank, each with the blocks that lie
there, so that `torch.distributed.checkpoint` saves and loads them as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import CheckpointError
from drivetrain_core.extending import absent, summary
from drivetrain_core.services.chunked_tensor import ChunkedTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_parallel.state.model_entry import ModelEntry
    from drivetrain_parallel.state.optimizer_entry import (
        OptimizerEntry,
        ParallelizedOptimizerState,
    )

_GROUPS = "param_groups"


def mesh_state_dict(model: ModelEntry, optimizer: OptimizerEntry) -> dict[str, Any]:
    """Returns `model` and `optimizer` by canonical names, sharing memory.

    Args:
        model: The model.
        optimizer: Its optimizer. Of one that has not stepped there is no state.

    Raises:
        NamesError: The optimizer's state has no names by parameter.
    """
    state = optimizer.state()
    slots: dict[str, dict[str, object]] = {}
    for full_name, value in [*state.own.items(), *state.slots()]:
        slot, _, name = full_name.partition(".")
        slots.setdefault(name, {})[slot] = value
    groups: list[dict[str, object]] = [{"params": names} for names in state.groups()]
    for full_name, value in state.options().items():
        _, number, option = full_name.split(".", 2)
        groups[int(number)][option] = value
    return {
        "model": dict(model.tensors()),
        "optimizer": {"state": slots, _GROUPS: groups, "slots": _slots(state)},
    }


def load_mesh_state_dict(
    model: ModelEntry, optimizer: OptimizerEntry, values: Mapping[str, Any]
) -> None:
    """Takes over what `mesh_state_dict` gave, on this mesh or another.

    Args:
        model: The model.
        optimizer: Its optimizer.
        values: Blocks as they lie here, or whole tensors.

    Raises:
        CheckpointError: Something is missing or has another shape, or the optimizer has
            no place for its state yet; nothing has been changed.
        NamesError: The optimizer's state has no names by parameter.
    """
    here = mesh_state_dict(model, optimizer)
    given, theirs = values["optimizer"], here["optimizer"]
    problems: list[str] = []
    if given["slots"] != theirs["slots"]:
        problems.append(
            f"the optimizer keeps {', '.join(given['slots']) or 'nothing'} there, and "
            f"{', '.join(theirs['slots']) or 'nothing'} here; let it step once before, "
            "or restore state() with a Checkpointer, which makes what is missing"
        )
    if [g["params"] for g in given[_GROUPS]] != [g["params"] for g in theirs[_GROUPS]]:
        problems.append("the groups of the optimizer have other parameters")
    pairs = list(_pairs("model", here["model"], values["model"], problems))
    pairs += _pairs("optimizer", theirs["state"], given["state"], problems)
    moves = [move for pair in pairs for move in _moves(*pair, problems)]
    if problems:
        error = CheckpointError(summary(problems))
        error.mismatches = tuple(problems)
        raise error
    with torch.no_grad():
        for target, source in moves:
            if target.data_ptr() != source.data_ptr():
                target.copy_(source)
    scalars: dict[str, object] = {}
    for name, slots in given["state"].items():
        for slot, value in slots.items():
            if not isinstance(value, torch.Tensor):
                scalars[f"{slot}.{name}"] = value
    for number, group in enumerate(given[_GROUPS]):
        for option, value in group.items():
            if option != "params":
                scalars[f"{_GROUPS}.{number}.{option}"] = value
    optimizer.state().load_scalars(scalars)


def _slots(state: ParallelizedOptimizerState) -> list[str]:
    return sorted({name.partition(".")[0] for name, _ in state.slots()})


def _pairs(
    what: str, here: Mapping[str, Any], there: Mapping[str, Any], problems: list[str]
) -> Iterator[tuple[str, ChunkedTensor, torch.Tensor]]:
    """Yields what is here with what is to become of it."""
    # Whole dictionaries may have more than this rank.
    problems += absent(here, {**dict.fromkeys(here.keys() & there.keys())})
    for name in here.keys() & there.keys():
        if isinstance(here[name], dict):
            yield from _pairs(f"{what}.{name}", here[name], there[name], problems)
        elif isinstance(here[name], ChunkedTensor):
            yield f"{what}.{name}", here[name], there[name]


def _moves(
    name: str, target: ChunkedTensor, source: torch.Tensor, problems: list[str]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns which memory is copied into which; notes why it cannot be."""
    if tuple(target.shape) != tuple(source.shape) or target.dtype != source.dtype:
        problems.append(
            f"{name!r} is {list(target.shape)} {target.dtype} here, but "
            f"{list(source.shape)} {source.dtype} there"
        )
        return []
    if not isinstance(source, ChunkedTensor):
        full: Any = source
        whole: torch.Tensor = (
            full.full_tensor() if hasattr(full, "full_tensor") else full
        )
        return [
            (
                local,
                whole[
                    tuple(
                        slice(o, o + n)
                        for o, n in zip(offset, local.shape, strict=True)
                    )
                ],
            )
            for offset, local in target.local_chunks()
        ]
    blocks = {(offset, tuple(t.shape)): t for offset, t in source.local_chunks()}
    found = []
    for offset, local in target.local_chunks():
        block = blocks.get((offset, tuple(local.shape)))
        if block is None:
            problems.append(
                f"{name!r} has a block at {list(offset)} here, and none such there: it "
                "is of another mesh. Save it, and load it into state_dict() here"
            )
        else:
            found.append((local, block))
    return found
