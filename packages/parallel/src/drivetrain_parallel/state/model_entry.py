"""A model over a mesh as an entry of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.extending import (
    absent,
    has_own_state,
    join_tree,
    shape_mismatch,
    split_tree,
    with_extra_state,
)
from drivetrain_core.services import unwritable
from drivetrain_core.services.chunked_tensor import Chunk, ChunkedTensor
from drivetrain_core.services.state_entry import StateEntry
from drivetrain_parallel.state.parallelized_model import ParallelizedModel, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from drivetrain_core.services.packed_state import Entry
    from drivetrain_core.services.restoration import Restoration
    from drivetrain_core.services.tensor_spec import TensorSpec


class ModelEntry(StateEntry):
    """A model over a mesh, saved as the model as written would be.

    Args:
        laid: What this rank has of it.

    Attributes:
        laid: As given.
    """

    kind = "model"

    def __init__(self, laid: ParallelizedModel) -> None:
        """Keeps the model."""
        self.laid = laid

    def tensors(self) -> dict[str, ChunkedTensor]:
        """Returns the parameters and buffers of which this rank has blocks, by name."""
        return joined(
            (
                piece.name,
                piece.global_shape,
                Chunk(offset=piece.offset, tensor=piece.tensor, writes=piece.counts),
            )
            for piece in self.laid.pieces()
        )

    def pack(
        self, key: str, state: Mapping[str, object]
    ) -> tuple[Entry, dict[str, torch.Tensor]]:
        """Returns the plain half, and this rank's tensors by name."""
        del state
        tensors: dict[str, torch.Tensor] = {
            f"{key}.{name}": tensor for name, tensor in self.tensors().items()
        }
        extra = {name: m.get_extra_state() for name, m in self._with_extra().items()}
        plain = split_tree(extra, f"{key}._extra_state", tensors)
        entry = {
            "kind": self.kind,
            "plain": plain,
            "tensors": list(tensors),
            "is_partial": True,
        }
        return entry, tensors

    def plan(
        self,
        key: str,
        into: Mapping[str, object],
        plan: Restoration,
        entry: Entry,
        specs: Sequence[TensorSpec],
        saved: Mapping[str, TensorSpec],
    ) -> None:
        """Adds what restores this rank's part."""
        del into, saved
        extra_prefix = f"{key}._extra_state."
        there = {s.name: s for s in specs if not s.name.startswith(extra_prefix)}
        whole = {f"{key}.{n}": spec for n, spec in self.laid.whole.tensors.items()}
        here = {f"{key}.{name}": tensor for name, tensor in self.tensors().items()}
        plan.mismatches += absent(whole, there)
        targets: dict[str, torch.Tensor] = {}
        for name, spec in whole.items():
            if name not in there:
                continue
            problem = _problem(name, here.get(name), spec, there[name])
            if problem:
                plan.mismatches.append(problem)
            elif name in here:
                targets[name] = here[name]
        own = {
            s.name: torch.empty(s.global_shape, dtype=s.dtype)
            for s in specs
            if s.name not in there
        }
        extra: Any = join_tree(entry["plain"], own)
        modules = self._with_extra()
        plan.mismatches += [
            f"{key!r}: the extra state of {name!r} is here, but not in the checkpoint"
            for name in modules
            if name not in extra
        ]

        def finish() -> None:
            for name, module in modules.items():
                if name in extra:
                    module.set_extra_state(extra[name])

        plan.targets.append(lambda: targets | own)
        plan.finish.append(finish)

    def _with_extra(self) -> dict[str, nn.Module]:
        modules = self.laid.modules()
        if has_own_state(modules.values()):
            message = (
                "a module of the model has a state of its own, by hooks or overrides of "
                "state_dict, which a program over a mesh would lose: train it without one"
            )
            raise TypeError(message)
        return with_extra_state(modules)


def _problem(
    name: str, tensor: ChunkedTensor | None, spec: TensorSpec, there: TensorSpec
) -> str:
    """Says why a tensor cannot be restored; "" if it can."""
    if tensor is None:
        # Another rank has it, and knows its type now.
        if spec.global_shape == there.global_shape:
            return ""
        return (
            f"{name!r} is {list(spec.global_shape)} here, but "
            f"{list(there.global_shape)} in the checkpoint"
        )
    problems = (unwritable(chunk.tensor) for chunk in tensor.chunks)
    problem = next((p for p in problems if p), "")
    return f"{name!r} {problem}" if problem else shape_mismatch(name, tensor, there)
