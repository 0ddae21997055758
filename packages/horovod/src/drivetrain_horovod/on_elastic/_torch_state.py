"""The state of a training with torch: a model, an optimizer, a sampler, and numbers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_horovod.on_elastic._collectives import share_state
from drivetrain_horovod.on_elastic._sampler import ElasticSampler
from drivetrain_horovod.on_elastic._state import ObjectState

if TYPE_CHECKING:
    from collections.abc import Mapping


class StateHandler:
    """Keeps a copy of the state of something that has a `state_dict`.

    Args:
        value: What it is.

    Attributes:
        value: What it is.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved: Mapping[str, Any] = {}
        self.save()

    def save(self) -> None:
        """Keeps a copy of the state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Goes back to what was saved last."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, as it is there now."""
        share_state({"value": self.value}, 0)
        self.save()

    def reset(self) -> None:
        """Takes note of a change of the world; does nothing by default."""

    def set_value(self, value: Any) -> None:
        """Puts something else in its place.

        Args:
            value: Of the same kind.
        """
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Keeps the parameters and buffers of a model."""


class OptimizerStateHandler(StateHandler):
    """Keeps the state and the options of an optimizer."""


class SamplerStateHandler(StateHandler):
    """Keeps how far a sampler is, and deals anew after a change of the world."""

    def reset(self) -> None:
        """Deals what is left to the ranks that there are now."""
        self.value.reset()


_HANDLERS: tuple[tuple[type, type[StateHandler]], ...] = (
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
)


def _handler(value: object) -> StateHandler | None:
    for kind, handler in _HANDLERS:
        if isinstance(value, kind):
            return handler(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return StateHandler(value)
    return None


class TorchState(ObjectState):
    """A model, an optimizer, samplers, schedules, and plain data, as attributes.

    What has a `state_dict` is kept and shared by it; all else must be plain data. The
    state of rank 0 goes to all others at once.

    Args:
        model: On this rank.
        optimizer: Of its parameters.
        **kwargs: What else belongs to the state, by name.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> state = hvd.elastic.TorchState(model=model, epoch=0)
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(7.0)
        >>> state.save()
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(0.0)
        >>> state.restore()
        >>> model.weight.tolist()
        [[7.0, 7.0]]
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler(value) for name, value in given.items()}
        found = {name: one for name, one in handlers.items() if one is not None}
        object.__setattr__(self, "_handlers", found)
        plain = {name: value for name, value in given.items() if name not in found}
        for name in found:
            object.__setattr__(self, name, given[name])
        super().__init__(**plain)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; what has a `state_dict` is kept from now on as it is."""
        handler = self._handlers.get(name)
        if handler is not None and value is not handler.value:
            handler.set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keeps a copy of everything."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, as it is there now."""
        held = {name: one.value for name, one in self._handlers.items()}
        state = {**held, **self._values()}
        share_state(state, 0)
        for name in self._names:
            setattr(self, name, state[name])
        self.save()

    def reset(self) -> None:
        """Takes note of a change of the world."""
        for handler in self._handlers.values():
            handler.reset()
