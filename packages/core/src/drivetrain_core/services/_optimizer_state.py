"""The state of an optimizer by parameter names, instead of by parameter numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor

from drivetrain_core._errors import NamesError
from drivetrain_core.services._own_state import makes_its_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from drivetrain_core.services.tensor_spec import TensorSpec

_GROUPS = "param_groups"
_OWN = "parameter"


def keeps_state_by_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Says whether all state stands in `optimizer.state`, a flat mapping a parameter.

    Args:
        optimizer: Any optimizer. One that overrides `state_dict` counts if it has
            `master_weights`, its pairs of a weight and the copy that it steps; one with
            hooks of its state dict never does.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> keeps_state_by_parameter(torch.optim.Adam([weight]))
        True
    """
    return not makes_its_state(optimizer) and not any(
        isinstance(value, dict | list | tuple)
        for state in optimizer.state.values()
        for value in state.values()
    )


class OptimizerState:
    """Names each tensor and value of an optimizer: `exp_avg.<parameter>`, and so on.

    A parameter that is not one of the model's (a master copy, say) is itself part of
    the state, as `parameter.<name>`.

    Args:
        optimizer: An optimizer with flat state a parameter.
        names: The canonical name of each parameter of the model, by `id`.

    Attributes:
        own: The parameters that are part of the state, by name.

    Raises:
        NamesError: Two parameters have one name.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]
    ) -> None:
        self._optimizer = optimizer
        self.own: dict[str, torch.Tensor] = {}
        self._parameters: dict[str, torch.Tensor] = {}
        self._group_of: dict[str, dict[str, object]] = {}
        masters = {id(m): w for w, m in getattr(optimizer, "master_weights", ())}
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                known = names.get(id(masters.get(id(parameter), parameter)))
                name = known or f"{_GROUPS}.{number}.{index}"
                if name in self._parameters:
                    message = f"the optimizer holds two parameters named {name!r}"
                    raise NamesError(message)
                self._parameters[name] = parameter
                self._group_of[name] = group
                if id(parameter) not in names:
                    self.own[f"{_OWN}.{name}"] = parameter

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the tensors by name, detached but sharing memory."""
        found = {name: parameter.detach() for name, parameter in self.own.items()}
        for name, value in self._items():
            if isinstance(value, torch.Tensor):
                found[name] = value.detach()
        return found

    def groups(self) -> list[list[str]]:
        """Returns the names of the parameters of each group, in order."""
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        return [
            [names[id(parameter)] for parameter in group["params"]]
            for group in self._optimizer.param_groups
        ]

    def options(self) -> dict[str, object]:
        """Returns the options of all groups by name, tensors among them."""
        return {
            f"{_GROUPS}.{number}.{option}": value
            for number, group in enumerate(self._optimizer.param_groups)
            for option, value in group.items()
            if option != "params"
        }

    def slots(self) -> Iterator[tuple[str, object]]:
        """Yields the name and the value of all state of parameters.

        Raises:
            NamesError: A key of the state has a dot.
        """
        for name, parameter in self._parameters.items():
            # `.get`: reading a missing key of this defaultdict would create it.
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if "." in str(key):
                    message = f"the optimizer's state has a dot in its key {key!r}"
                    raise NamesError(message)
                yield f"{key}.{name}", value

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the global shape of each parameter by name."""
        return {name: tuple(p.shape) for name, p in self._parameters.items()}

    def check(self, spec: TensorSpec) -> None:
        """Raises what `prepare` would for a tensor that is not there; changes nothing.

        Raises:
            NamesError: The optimizer has no such parameter, or the placement of the
                tensor cannot be known before a first step.
        """
        _, name = self._split(spec.name)
        parameter = self._parameters.get(name)
        fits = not spec.global_shape or (
            parameter is not None and spec.global_shape == tuple(parameter.shape)
        )
        if isinstance(parameter, DTensor) and not fits:
            message = (
                f"{spec.name!r} has shape {list(spec.global_shape)}, its sharded "
                f"parameter {list(parameter.shape)}: where its parts lie is not known "
                "before the optimizer has stepped once. Step it, then restore"
            )
            raise NamesError(message)

    def retain(self, names: Collection[str], *, of: Collection[str]) -> None:
        """Drops state as if it never was.

        Args:
            names: The names of the state that stays.
            of: The names of the parameters; the state of others stays.
        """
        for name in of:
            state = self._optimizer.state.get(self._parameters[name], {})
            for key in [key for key in state if f"{key}.{name}" not in names]:
                del state[key]

    def prepare(self, specs: Iterable[TensorSpec]) -> None:
        """Allocates the state of these names where there is none.

        Raises:
            NamesError: The optimizer has no such parameter, or the placement of the
                tensor cannot be known before a first step.
        """
        present = self.tensors()
        for spec in specs:
            if spec.name in present:
                continue
            self.check(spec)
            key, name = self._split(spec.name)
            if key == _GROUPS:
                value = torch.empty(spec.global_shape, dtype=spec.dtype)
            else:
                value = self._empty(name, spec)
            self._set(key, name, value)

    def load_scalars(self, values: Mapping[str, object]) -> None:
        """Sets values by name.

        Raises:
            NamesError: The optimizer has no such group or parameter.
        """
        for full_name, value in values.items():
            self._set(*self._split(full_name), value)

    def _set(self, key: str, name: str, value: object) -> None:
        if key == _GROUPS:
            number, _, option = name.partition(".")
            self._optimizer.param_groups[int(number)][option] = value
        else:
            self._optimizer.state[self._parameters[name]][key] = value

    def _items(self) -> Iterator[tuple[str, object]]:
        yield from self.options().items()
        yield from self.slots()

    def _split(self, full_name: str) -> tuple[str, str]:
        key, _, name = full_name.partition(".")
        if key == _GROUPS:
            number = name.partition(".")[0]
            count = len(self._optimizer.param_groups)
            if number.isdecimal() and int(number) < count:
                return key, name
            message = f"the optimizer has {count} groups: no place for {full_name!r}"
            raise NamesError(message)
        if key == _OWN or name not in self._parameters:
            message = f"the optimizer has no parameter for {full_name!r}"
            raise NamesError(message)
        return key, name

    def _empty(self, name: str, spec: TensorSpec) -> torch.Tensor:
        parameter = self._parameters[name].detach()
        shape, dtype = spec.global_shape, spec.dtype
        if isinstance(parameter, DTensor) and shape:
            return empty_dtensor(
                shape,
                dtype=dtype,
                device_mesh=parameter.device_mesh,
                placements=parameter.placements,
            )
        if shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=dtype)
        device = parameter.device
        if not shape:
            # As torch does it: step counts stay on the CPU unless a kernel reads them.
            group = self._group_of[name]
            if not (group.get("capturable") or group.get("fused")):
                device = torch.device("cpu")
        return torch.empty(shape, dtype=dtype, device=device)
