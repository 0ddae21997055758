"""An optimizer over a mesh as an entry of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import NamesError
from drivetrain_core.extending import (
    OptimizerRestoration,
    OptimizerState,
    keeps_state_by_parameter,
    split_tree,
)
from drivetrain_core.services.chunked_tensor import Chunk
from drivetrain_core.services.state_entry import StateEntry
from drivetrain_parallel.state.model_entry import ModelEntry
from drivetrain_parallel.state.parallelized_model import (
    ParallelizedModel,
    Piece,
    joined,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from drivetrain_core.services.chunked_tensor import ChunkedTensor
    from drivetrain_core.services.packed_state import Entry
    from drivetrain_core.services.restoration import Restoration
    from drivetrain_core.services.tensor_spec import TensorSpec

_GROUPS = "param_groups"


class ParallelizedOptimizerState(OptimizerState):
    """The state of an optimizer over a mesh, by the parameters of the model as written.

    What this rank does not hold is known by name: it can be asked about, and setting it
    does nothing.

    Args:
        optimizer: An optimizer with flat state a parameter.
        laid: The model whose parameters it steps.
        groups: The first names of the parameters of each group, over all ranks.
        prefix: What stands before names of parameters.

    Raises:
        NamesError: The optimizer's groups are not these; or some of its state is cut
            otherwise than the parameter it belongs to.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        laid: ParallelizedModel,
        groups: Sequence[Sequence[str]],
        prefix: str = "",
    ) -> None:
        pieces = [piece for piece in laid.pieces() if piece.is_parameter]
        self._inner = OptimizerState(optimizer, {id(p.tensor): p.key for p in pieces})
        self._pieces = {piece.key: piece for piece in pieces}
        self._prefix = prefix
        self._keys: dict[str, list[str]] = {}
        for piece in pieces:
            self._keys.setdefault(prefix + piece.name, []).append(piece.key)
        self._names = [[prefix + name for name in group] for group in groups]
        whole = laid.whole.tensors
        self._shapes = {prefix + name: whole[name].global_shape for name in whole}
        self._check_groups()
        self.own = dict(self._chunked(self._inner.own.items()))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns this rank's tensors by name, options of groups among them."""
        inner = self._inner.tensors().items()
        options = {n: t for n, t in inner if n.startswith(f"{_GROUPS}.")}
        return options | self._chunked((n, t) for n, t in inner if n not in options)

    def groups(self) -> list[list[str]]:
        """Returns the names of the parameters of each group over all ranks."""
        return [list(group) for group in self._names]

    def options(self) -> dict[str, object]:
        """Returns the options of all groups by name, tensors among them."""
        return self._inner.options()

    def slots(self) -> Iterator[tuple[str, object]]:
        """Yields the name and the value of all state of this rank's parameters."""
        slots = list(self._inner.slots())
        values = {n: v for n, v in slots if not isinstance(v, torch.Tensor)}
        yield from {self._canonical(n): v for n, v in values.items()}.items()
        tensors = [(n, v) for n, v in slots if isinstance(v, torch.Tensor)]
        yield from self._chunked(tensors).items()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the global shape of each parameter by name, here or not."""
        return self._shapes

    def check(self, spec: TensorSpec) -> None:
        """Raises what `prepare` would for a tensor that is not there.

        Raises:
            NamesError: No rank has such a parameter, or the placement of the tensor
                cannot be known before a first step.
        """
        slot, _, name = spec.name.partition(".")
        if slot == _GROUPS or name in self._keys:
            for one in self._local(spec):
                self._inner.check(one)
            return
        if name not in {n for group in self._names for n in group}:
            message = f"the optimizer has no parameter for {spec.name!r}"
            raise NamesError(message)

    def retain(self, names: Collection[str], *, of: Collection[str]) -> None:
        """Drops state as if it never was; see `OptimizerState`."""
        kept = set()
        for full_name in names:
            slot, _, name = full_name.partition(".")
            kept |= {f"{slot}.{key}" for key in self._keys.get(name, ())}
        self._inner.retain(
            kept, of=[k for name in of for k in self._keys.get(name, ())]
        )

    def prepare(self, specs: Iterable[TensorSpec]) -> None:
        """Allocates the state of these names where there is none, and it is here."""
        self._inner.prepare([one for spec in specs for one in self._local(spec)])

    def load_scalars(self, values: Mapping[str, object]) -> None:
        """Sets values by name, where they are here."""
        found: dict[str, object] = {}
        for full_name, value in values.items():
            slot, _, name = full_name.partition(".")
            if slot == _GROUPS:
                found[full_name] = value
            else:
                found |= {f"{slot}.{key}": value for key in self._keys.get(name, ())}
        self._inner.load_scalars(found)

    def _local(self, spec: TensorSpec) -> list[TensorSpec]:
        """Returns what a tensor is here: one for each piece of its parameter."""
        slot, _, name = spec.name.partition(".")
        if slot == _GROUPS:
            return [spec]
        found = []
        for key in self._keys.get(name, ()):
            piece, shape = self._pieces[key], spec.global_shape
            if shape == piece.global_shape:
                shape = tuple(piece.tensor.shape)
            found.append(replace(spec, name=f"{slot}.{key}", global_shape=shape))
        return found

    def _canonical(self, full_name: str) -> str:
        slot, _, key = full_name.partition(".")
        return f"{slot}.{self._prefix}{self._pieces[key].name}"

    def _chunked(
        self, items: Iterable[tuple[str, torch.Tensor]]
    ) -> dict[str, ChunkedTensor]:
        return joined(
            (self._canonical(name), *self._chunk(name, tensor))
            for name, tensor in items
        )

    def _chunk(
        self, full_name: str, tensor: torch.Tensor
    ) -> tuple[tuple[int, ...], Chunk]:
        piece = self._pieces[full_name.partition(".")[2]]
        shape = tuple(tensor.shape)
        if shape == tuple(piece.tensor.shape):
            chunk = Chunk(offset=piece.offset, tensor=tensor, writes=piece.counts)
            return piece.global_shape, chunk
        if shape and not piece.is_whole:
            message = (
                f"the optimizer's state {full_name.partition('.')[0]!r} of {piece.name} "
                f"has shape {list(shape)}, its part of the parameter "
                f"{list(piece.tensor.shape)}: a mesh cannot say which part of the whole "
                "it is. Save it without a tensor axis, or with another optimizer"
            )
            raise NamesError(message)
        return shape, Chunk(
            offset=(0,) * len(shape), tensor=tensor, writes=piece.counts
        )

    def _check_groups(self) -> None:
        here = self._inner.groups()
        for number, keys in enumerate(here):
            known = set(self._names[number]) if number < len(self._names) else set()
            for key in keys:
                piece: Piece | None = self._pieces.get(key)
                name = "" if piece is None else self._prefix + piece.name
                if name not in known:
                    message = (
                        f"group {number} of the optimizer holds {name or key!r}, which "
                        "was not in that group of the optimizer of the model as written"
                    )
                    raise NamesError(message)


class OptimizerEntry(StateEntry):
    """An optimizer over a mesh, saved as that of the model as written would be.

    Args:
        optimizer: This rank's optimizer.
        model: The entry of its model, which must be in the same state.
        groups: The first names of the parameters of each group, over all ranks.
    """

    kind = "optimizer"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: ModelEntry,
        groups: Sequence[Sequence[str]],
    ) -> None:
        """Keeps the parts."""
        self._optimizer = optimizer
        self._model = model
        self._groups = tuple(tuple(group) for group in groups)

    def pack(
        self, key: str, state: Mapping[str, object]
    ) -> tuple[Entry, dict[str, torch.Tensor]]:
        """Returns the plain half, and this rank's tensors by name."""
        found = self.state(self._prefix(key, state))
        values = [*found.own.items(), *found.options().items(), *found.slots()]
        tensors: dict[str, torch.Tensor] = {}
        scalars: dict[str, object] = {}
        for name, value in values:
            if isinstance(value, torch.Tensor):
                tensors[f"{key}.{name}"] = value
            else:
                scalars[name] = value
        plain = split_tree(scalars, f"{key}.scalars", tensors)
        entry: dict[str, Any] = {
            "kind": self.kind,
            "plain": plain,
            "groups": found.groups(),
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
        try:
            state = self.state(self._prefix(key, into))
            restoration = OptimizerRestoration(key, state, entry, specs, saved)
        except NamesError as error:
            plan.mismatches.append(f"{key!r} does not fit the checkpoint: {error}")
            return
        plan.mismatches += restoration.mismatches
        plan.prepare.append(restoration.prepare)
        plan.targets.append(restoration.targets)
        plan.finish.append(restoration.finish)

    def state(self, prefix: str = "") -> ParallelizedOptimizerState:
        """Returns the state as it is now.

        Args:
            prefix: What stands before names of parameters.

        Raises:
            NamesError: It has no names by parameter.
        """
        if not keeps_state_by_parameter(self._optimizer):
            message = (
                f"{type(self._optimizer).__name__} keeps state that is no flat mapping "
                "for each parameter, so over a mesh it has no names: train it with data "
                "parallel alone, or with another optimizer"
            )
            raise NamesError(message)
        return ParallelizedOptimizerState(
            self._optimizer, self._model.laid, self._groups, prefix
        )

    def _prefix(self, key: str, state: Mapping[str, object]) -> str:
        for name, value in state.items():
            if isinstance(value, ModelEntry) and value.laid is self._model.laid:
                return f"{name}."
        message = (
            f"{key!r} is an optimizer over a mesh, whose state is named after its model: "
            "save and restore the model with it, in the same state"
        )
        raise NamesError(message)
