"""How values flow between the matrices of a model, found by one forward pass.

The autograd graph of the loss is cut at the input and the output of every matrix
(`Linear`, `Embedding`, GPT-2's `Conv1D`). What stays connected is a *region*: the
values that can be reached from one another without passing through a matrix. The
residual stream with its norms is one region; the heads between the matrices of query,
key and value and the one of the output are another, and so is the inside of an MLP.

A region can be split over ranks by its features: matrices that write it keep their
output split, matrices that read it take their input split.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core.numerics.parameter_usage import without_dropout
from drivetrain_parallel.custom_gradient import custom_gradient
from drivetrain_parallel.tensor.styles import feature_dims, is_transposed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A module with one matrix.

    Args:
        name: Of the module.
        is_embedding: Whether it looks rows up.
        in_features: Its inputs; rows of an embedding.
        out_features: Its outputs.
        weight: The first name of the weight; tied matrices have the same.
    """

    name: str
    is_embedding: bool
    in_features: int
    out_features: int
    weight: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Values that are connected without a matrix between them.

    Args:
        writers: Matrices whose outputs are in it.
        readers: Matrices whose inputs are in it.
        parameters: Parameters of other modules that are used in it.
        reaches_loss: Whether the loss itself is in it.
    """

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    parameters: tuple[str, ...]
    reaches_loss: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """The matrices of a model and the regions between them.

    Args:
        matrices: Those that the forward pass called, by name, in the order of calls.
        regions: In the order of the first call that writes them.
        inputs: The tensors that modules were called with, by module and argument, and
            the matrices in the module that were called with the same tensor.
        arguments: The shapes of tensors that modules were first called with, by module
            and argument.
    """

    matrices: dict[str, Matrix]
    regions: tuple[Region, ...]
    inputs: tuple[tuple[str, str | int, tuple[str, ...]], ...]
    arguments: dict[tuple[str, str | int], tuple[int, ...]]


def is_matrix(module: nn.Module) -> bool:
    """Says whether a module is a matrix whose weight is a parameter of its own."""
    if module._parameters.get("weight") is None:
        return False
    return isinstance(module, nn.Linear | nn.Embedding) or is_transposed(module)


def trace_flow(
    model: nn.Module, batch: Any, loss_of: Callable[[nn.Module, Any], torch.Tensor]
) -> Flow:
    """Runs a copy of the model once, and returns how values flow in it.

    Args:
        model: On any device, `meta` included; it is not changed.
        batch: One batch on that device.
        loss_of: Returns the loss of (model, batch).
    """
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    names = {id(p): name for name, p in model.named_parameters()}
    tracer = _Tracer(model)
    with without_dropout(model), tracer.hooked(model):
        loss = loss_of(model, batch)
    return tracer.flow(loss, names)


def _marked(x: torch.Tensor) -> torch.Tensor:
    """Returns a copy with a node of its own, where a matrix begins or ends."""
    return custom_gradient(x, torch.clone, lambda grad: grad)


class _Sets:
    """Disjoint sets of numbers."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def find(self, item: int) -> int:
        parent = self._parent
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, one: int, other: int) -> None:
        self._parent[self.find(one)] = self.find(other)


class _Tracer:
    """Marks inputs and outputs of matrices while a model runs."""

    def __init__(self, model: nn.Module) -> None:
        self._matrices = {
            name: module for name, module in model.named_modules() if is_matrix(module)
        }
        self._inputs: dict[str, list[Any]] = {}
        self._outputs: dict[str, list[Any]] = {}
        self._called_with: list[tuple[str, torch.Tensor]] = []
        self._arguments: list[tuple[str, str | int, torch.Tensor]] = []
        self._shapes: dict[tuple[str, str | int], tuple[int, ...]] = {}

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for name, module in model.named_modules():
            if name in self._matrices:
                before, after = self._matrix_hooks(name)
                handles.append(
                    module.register_forward_pre_hook(before, with_kwargs=True)
                )
                handles.append(module.register_forward_hook(after))
            elif name:
                hook = self._argument_hook(name)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _matrix_hooks(self, name: str) -> tuple[Any, Any]:
        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            value = args[0] if args else next(iter(kwargs.values()))
            self._called_with.append((name, value))
            if not value.requires_grad:
                self._inputs.setdefault(name, [])
                return None
            marked = _marked(value)
            self._inputs.setdefault(name, []).append(marked.grad_fn)
            if args:
                return (marked, *args[1:]), kwargs
            return args, {**kwargs, next(iter(kwargs)): marked}

        def after(_: nn.Module, _args: Any, output: torch.Tensor) -> Any:
            marked = _marked(output)
            self._outputs.setdefault(name, []).append(marked.grad_fn)
            return marked

        return before, after

    def _argument_hook(self, name: str) -> Any:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            for key, value in [*enumerate(args), *kwargs.items()]:
                if not isinstance(value, torch.Tensor):
                    continue
                self._shapes.setdefault((name, key), tuple(value.shape))
                if value.requires_grad:
                    self._arguments.append((name, key, value))

        return before

    def flow(self, loss: torch.Tensor, names: dict[int, str]) -> Flow:
        sets, used = self._connect(loss)
        for nodes in (*self._inputs.values(), *self._outputs.values()):
            # A module that is called twice has one sharding.
            for node in nodes[1:]:
                sets.join(id(nodes[0]), id(node))
        writers = {
            name: sets.find(id(nodes[0])) for name, nodes in self._outputs.items()
        }
        readers = {
            name: sets.find(id(nodes[0]))
            for name, nodes in self._inputs.items()
            if nodes
        }
        # Others are not trained, such as those of a network in the loss.
        used = [(node, p) for node, p in used if id(p) in names]
        regions = []
        for root in dict.fromkeys(writers.values()):
            parameters = dict.fromkeys(
                names[id(p)] for node, p in used if sets.find(node) == root
            )
            region = Region(
                writers=tuple(n for n, r in writers.items() if r == root),
                readers=tuple(n for n, r in readers.items() if r == root),
                parameters=tuple(parameters),
                reaches_loss=sets.find(id(loss.grad_fn)) == root,
            )
            regions.append(region)
        matrices = {name: self._matrix(name, names) for name in self._outputs}
        return Flow(
            matrices=matrices,
            regions=tuple(regions),
            inputs=tuple(self._fed()),
            arguments=self._shapes,
        )

    def _matrix(self, name: str, names: dict[int, str]) -> Matrix:
        module = self._matrices[name]
        out_dim, in_dim = feature_dims(module)
        weight = module._parameters["weight"]
        assert weight is not None
        return Matrix(
            name=name,
            is_embedding=isinstance(module, nn.Embedding),
            in_features=weight.shape[in_dim],
            out_features=weight.shape[out_dim],
            weight=names[id(weight)],
        )

    def _connect(self, loss: torch.Tensor) -> tuple[_Sets, list[tuple[int, Any]]]:
        """Joins the nodes of the graph, but not across a mark."""
        starts = {id(node) for nodes in self._inputs.values() for node in nodes}
        ends = {id(node) for nodes in self._outputs.values() for node in nodes}
        sets, used = _Sets(), []
        # A node that nobody holds is another object each time it is asked for.
        last: Any = loss.grad_fn
        seen = {id(last): last}
        todo = [last]
        while todo:
            node: Any = todo.pop()
            for other, _ in node.next_functions:
                if other is None:
                    continue
                if hasattr(other, "variable"):
                    used.append((id(node), other.variable))
                    continue
                # What is before the end of a matrix, or after its start, is inside it.
                if id(node) not in ends and id(other) not in starts:
                    sets.join(id(node), id(other))
                if id(other) not in seen:
                    seen[id(other)] = other
                    todo.append(other)
        self._alive = seen
        return sets, used

    def _fed(self) -> Iterator[tuple[str, str | int, tuple[str, ...]]]:
        """Yields which matrices got a tensor that a module around them was given."""
        for owner, key, value in self._arguments:
            fed = tuple(
                name
                for name, got in self._called_with
                if got is value and name.startswith(f"{owner}.")
            )
            if fed:
                yield owner, key, fed
