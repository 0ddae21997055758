"""Modules without parameters that stand where another stage has the real one.

The model's own forward runs on every stage. Before the stage's first block stands a
placeholder that returns what was received, after its last one a placeholder that ends
the forward; modules before the blocks return what was received of them, or zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import map_tensors, tensors_of
from drivetrain_parallel.pipeline.tree import fill_tree, tensor_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_parallel.pipeline.plan import Boundary, ModuleOutput


class StageEnd(BaseException):
    """Leaves a forward and the loss around it, once the stage's last block has run.

    No `Exception`, so that no `except Exception` of a model takes it for a failure.

    Args:
        tensors: What the next block would have been called with.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps the tensors."""
        super().__init__("the stage's last block has run")
        self.tensors = list(tensors)


@dataclass(slots=True, eq=False)
class Relay:
    """What the modules of one stage pass to each other during one forward.

    Args:
        received: The tensors for the placeholder before the first own block.
        modules: The tensors of modules, received or computed here.
        calls: How often each module has been called in this forward.
        runs: Whether a stage runs the model.
    """

    received: list[torch.Tensor] = field(default_factory=list)
    modules: dict[ModuleOutput, torch.Tensor] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    runs: bool = False

    def next_call(self, name: str) -> int:
        """Returns the number of a module's call in this forward, from 0."""
        call = self.calls.get(name, 0)
        self.calls[name] = call + 1
        return call

    def clear(self) -> None:
        """Lets go of all tensors, after a forward."""
        self.runs = False
        self.received = []
        self.modules.clear()
        self.calls.clear()


class _Stub(nn.Module):
    """A module without parameters that answers for another one's plain attributes.

    Args:
        twin: A copy of the module it stands for, on the meta device.
        real: The module itself, where it is to answer for its attributes.
    """

    def __init__(self, twin: nn.Module, real: nn.Module | None = None) -> None:
        super().__init__()
        self._real = (real or twin,)
        # In a tuple, so that the twin's parameters do not become this module's.
        self._twin = (twin,)

    @property
    def twin(self) -> nn.Module:
        """Returns the copy of the module that this one stands for."""
        return self._twin[0]

    def __getattr__(self, name: str) -> Any:
        """Returns the twin's attribute, such as `attention_type` or `weight`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattribute__("_real")[0], name)


def only_in_stage(model: nn.Module, relay: Relay, elsewhere: int) -> None:
    """Lets a carved model be called by its stage only, and refuse before it runs.

    Args:
        model: The carved model.
        relay: Tells whether the stage runs.
        elsewhere: The number of a block that this rank has not.
    """

    def refuse(_: nn.Module, args: Any) -> None:
        del args
        if not relay.runs:
            raise _called_outside(elsewhere)

    model.register_forward_pre_hook(refuse)


def _called_outside(block: int) -> PlanError:
    return PlanError(
        Code.STEP_NOT_OWNED,
        "pipeline",
        because="the model was called, and this rank has a stage of it: block "
        f"{block} is on another rank",
        fix="train with train_step(batch); to evaluate, restore a checkpoint of "
        "accelerated.state() without a pipeline",
    )


class PlaceholderBlock(_Stub):
    """Stands for a block of another stage.

    Args:
        twin: The block's copy on the meta device.
        index: The block's index.
        output: The structure of what the block returns.
        relay: That of the stage.
        before: How a block's result reaches the next one.
        entry: What crosses into the stage, where the next block is its first.
        exit_: What crosses out of it, where the block before is its last.
    """

    def __init__(
        self,
        twin: nn.Module,
        *,
        index: int,
        output: Any,
        relay: Relay,
        before: Boundary | None = None,
        entry: Boundary | None = None,
        exit_: Boundary | None = None,
    ) -> None:
        """Remembers its place."""
        super().__init__(twin)
        self._index, self._output, self._relay = index, output, relay
        self._before, self._entry, self._exit = before, entry, exit_

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Ends the forward, returns what was received, or passes its input on.

        Raises:
            PlanError: The model is called by somebody else than its stage.
        """
        if not self._relay.runs and (self._entry or self._exit) is not None:
            raise _called_outside(self._index)
        if self._exit is not None:
            raise StageEnd(_taken(self._exit, args, kwargs, self._index))
        flowing: dict[int, torch.Tensor] = {}
        if self._entry is not None:
            flowing = dict(zip(self._entry.sources, self._relay.received, strict=True))
        elif self._before is not None:
            for number, path in zip(
                self._before.sources, self._before.targets, strict=True
            ):
                tensor = tensor_at((args, kwargs), path)
                if tensor is not None:
                    flowing[number] = tensor
        return _returned(self._output, flowing, args, kwargs)


def _taken(exit_: Boundary, args: Any, kwargs: Any, index: int) -> list[torch.Tensor]:
    found = []
    for path in exit_.targets:
        tensor = tensor_at((args, kwargs), path)
        if tensor is None:
            raise PlanError(
                Code.GRAPH_BREAK,
                "pipeline",
                because=f"block {index} was planned to take a tensor at {path}, and it "
                "was called without one",
                fix="plan the pipeline with a batch like those that it trains on",
            )
        found.append(tensor)
    return found


def _returned(
    output: Any, flowing: dict[int, torch.Tensor], args: Any, kwargs: Any
) -> Any:
    """Returns a block's output; what nobody reads in it is a zero."""
    some = next(iter(flowing.values()), None)
    if some is None:
        some = next(tensors_of((args, kwargs)), torch.zeros(()))
    nothing = some.detach().new_zeros(())
    numbers = range(_num_tensors(output))
    return fill_tree(output, [flowing.get(number, nothing) for number in numbers])


def _num_tensors(output: Any) -> int:
    ((kind, part),) = output.items()
    if kind == "tensor":
        return 1
    if kind == "dict":
        part = part.values()
    return 0 if kind == "value" else sum(_num_tensors(item) for item in part)


class ReceivedModule(_Stub):
    """Returns what the stage before has sent of a module's results.

    Args:
        twin: The module's copy on the meta device: it gives the structure.
        name: The module's name.
        relay: That of the stage.
        real: The module itself, where it is to answer for its attributes.
    """

    def __init__(
        self, twin: nn.Module, name: str, relay: Relay, real: nn.Module | None = None
    ) -> None:
        """Remembers whose results to return."""
        super().__init__(twin, real)
        self._name, self._relay = name, relay
        self._shapes: dict[object, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what was received, and zeros for tensors that no stage needs."""
        call = self._relay.next_call(self._name)
        received = {
            key.number: tensor
            for key, tensor in self._relay.modules.items()
            if key.module == self._name and key.call == call
        }
        template = zeros_like_twin(self.twin, args, kwargs, self._shapes)
        number = -1

        def replace(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal number
            number += 1
            return received.get(number, tensor)

        return map_tensors(replace, template)


class ZeroModule(_Stub):
    """Returns zeros of the shapes that a module's results would have.

    Args:
        twin: The module's copy on the meta device.
    """

    def __init__(self, twin: nn.Module) -> None:
        """Keeps the twin."""
        super().__init__(twin)
        self._shapes: dict[object, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the zeros."""
        return zeros_like_twin(self.twin, args, kwargs, self._shapes)


class DroppedModule(_Stub):
    """Stands for a module that does not run on this stage.

    Args:
        twin: The module's copy on the meta device.
        name: Its name.
    """

    def __init__(self, twin: nn.Module, name: str) -> None:
        """Remembers the name."""
        super().__init__(twin)
        self._name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises a `PlanError`: the plan was made with another kind of batch."""
        del args, kwargs
        raise PlanError(
            Code.GRAPH_BREAK,
            "pipeline",
            because=f"{self._name} is called on a stage that does not hold it; it did "
            "not run there with the batch that the pipeline was planned with",
            fix="plan the pipeline with a batch like those that it trains on",
        )


def signature_of(tree: Any) -> object:
    """Returns what the shapes of a result depend on: structure, shapes and dtypes.

    Example:
        >>> signature_of(({"x": torch.ones(2)}, 3))
        ((('x', ((2,), torch.float32)),), 3)
    """
    if isinstance(tree, torch.Tensor):
        return tuple(tree.shape), tree.dtype
    if isinstance(tree, dict):
        return tuple((key, signature_of(part)) for key, part in tree.items())
    if isinstance(tree, tuple | list):
        return tuple(signature_of(part) for part in tree)
    if isinstance(tree, str | int | float | bool | torch.dtype | type(None)):
        return tree
    return type(tree)


def zeros_like_twin(
    twin: nn.Module, args: Any, kwargs: Any, known: dict[object, Any]
) -> Any:
    """Returns zeros of the structure and shapes that a module returns.

    Args:
        twin: The module, on the meta device.
        args: What it is called with.
        kwargs: What it is called with by name.
        known: Earlier results by signature, on the meta device; added to.
    """
    device = next((t.device for t in tensors_of((args, kwargs))), torch.device("cpu"))
    key = (signature_of(args), signature_of(kwargs))
    if key not in known:

        def to_meta(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to("meta")

        on_meta = map_tensors(to_meta, args), map_tensors(to_meta, kwargs)
        known[key] = _run_twin(twin, *on_meta)
    return map_tensors(lambda t: torch.zeros_like(t, device=device), known[key])


def _run_twin(twin: nn.Module, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        try:
            return twin(*args, **kwargs)
        except RuntimeError:
            # Tensors that it makes itself, such as positions, may lie on the CPU.
            with torch.device("meta"):
                return twin(*args, **kwargs)
