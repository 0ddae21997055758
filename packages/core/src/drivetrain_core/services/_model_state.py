"""The fallback `StateSource`: a model and its optimizer, however they are wrapped."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from drivetrain_core._errors import NamesError
from drivetrain_core._model.names import named_tensors
from drivetrain_core.services._optimizer_state import (
    OptimizerState,
    keeps_state_by_parameter,
)
from drivetrain_core.services.state_source import TensorPart, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

_OPTIMIZER = "optimizer."


class ModelState:
    """Gives the state of a model and its optimizer by canonical names.

    The model may be plain, or wrapped by DDP, `torch.compile`, activation checkpointing
    or FSDP2, and hold DTensors. The optimizer's tensors are named after the parameter
    they belong to, such as `optimizer.exp_avg.layers.0.weight`.

    Args:
        model: The model. Its parameters must be final: wrap and shard it first.
        optimizer: Its optimizer, if that is part of the state.

    Raises:
        NamesError: Two tensors have one name, or the optimizer keeps state that has no
            name by parameter.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model(torch.ones(2)).backward()
        >>> optimizer.step()
        >>> state = ModelState(torch.nn.DataParallel(model), optimizer)
        >>> [part.name for part in state.parts()]
        ['weight', 'optimizer.momentum_buffer.weight']
        >>> state.scalars()["optimizer.param_groups.0.lr"]
        0.1
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self._model = model
        self._optimizer: OptimizerState | None = None
        if optimizer is not None:
            if not keeps_state_by_parameter(optimizer):
                message = (
                    f"{type(optimizer).__name__} keeps state that is no flat mapping "
                    "for each parameter, so it has no names: save its state_dict()"
                )
                raise NamesError(message)
            names = {id(tensor): name for name, tensor in named_tensors(model).items()}
            self._optimizer = OptimizerState(optimizer, names)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the tensors by name: DTensors where they are sharded, detached."""
        found = {
            name: tensor.detach() for name, tensor in named_tensors(self._model).items()
        }
        if self._optimizer is not None:
            for name, tensor in self._optimizer.tensors().items():
                full_name = _OPTIMIZER + name
                if full_name in found:
                    message = (
                        f"the model and its optimizer both have a tensor {full_name!r};"
                        " rename the model's attribute 'optimizer'"
                    )
                    raise NamesError(message)
                found[full_name] = tensor
        return found

    def parts(self) -> tuple[TensorPart, ...]:
        """Returns this rank's parts, the model's first."""
        return tuple(_part(name, tensor) for name, tensor in self.tensors().items())

    def scalars(self) -> dict[str, object]:
        """Returns the optimizer's options and counters by name."""
        if self._optimizer is None:
            return {}
        return {_OPTIMIZER + k: v for k, v in self._optimizer.scalars().items()}

    def prepare(self, specs: Iterable[TensorSpec]) -> None:
        """Allocates the optimizer's state for these tensors; see `StateSource`."""
        missing = []
        present = self.tensors()
        for spec in specs:
            if spec.name not in present:
                missing.append(spec)
                continue
            tensor = present[spec.name]
            if (tuple(tensor.shape), tensor.dtype) != (spec.global_shape, spec.dtype):
                message = (
                    f"{spec.name!r} is {list(tensor.shape)} {tensor.dtype} here, but "
                    f"{list(spec.global_shape)} {spec.dtype} there"
                )
                raise NamesError(message)
        if missing:
            optimizer = self._the_optimizer(missing[0].name, present)
            optimizer.prepare(_without_prefix(spec, present) for spec in missing)

    def load_scalars(self, values: Mapping[str, object]) -> None:
        """Sets the optimizer's options and counters; see `StateSource`."""
        if not values:
            return
        inner = {}
        for name, value in values.items():
            if not name.startswith(_OPTIMIZER):
                raise NamesError(_unknown(name, self.scalars()))
            inner[name.removeprefix(_OPTIMIZER)] = value
        self._the_optimizer(next(iter(values)), ()).load_scalars(inner)

    def _the_optimizer(self, name: str, known: Iterable[str]) -> OptimizerState:
        if self._optimizer is None:
            raise NamesError(_unknown(name, known))
        return self._optimizer


def _part(name: str, tensor: torch.Tensor) -> TensorPart:
    local, offset = tensor, (0,) * tensor.dim()
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        # What torch's own checkpoints ask: it knows uneven and strided shards.
        chunk = tensor.__create_chunk_list__()[0]  # type: ignore[no-untyped-call]
        offset = tuple(chunk.offsets)
    return TensorPart(
        name=name,
        global_shape=tuple(tensor.shape),
        dtype=tensor.dtype,
        offset=offset,
        local=local,
    )


def _without_prefix(spec: TensorSpec, known: Iterable[str]) -> TensorSpec:
    if not spec.name.startswith(_OPTIMIZER):
        raise NamesError(_unknown(spec.name, known))
    return TensorSpec(
        name=spec.name.removeprefix(_OPTIMIZER),
        global_shape=spec.global_shape,
        dtype=spec.dtype,
    )


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return f"this program has no place for {name!r}{hint}"
