"""The styles as torch's `ParallelStyle`: each turns one module into its parallel form."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from drivetrain_core import Code, PlanError
from drivetrain_parallel.tensor.exchange import (
    enter,
    gather,
    gather_in,
    reduce,
    scatter_out,
    split,
)
from drivetrain_parallel.tensor.local_view import (
    Packed,
    packed_of,
    part_name,
    view_locally,
)
from drivetrain_parallel.tensor.plan import HeadInput, ModuleStyle, Style
from drivetrain_parallel.torch_internals import on_each_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

SEQUENCE_DIM = 1
"""The dimension of the tokens, of tensors with the samples first."""

_NO_STYLE = ModuleStyle(style=Style.PARTIAL)


def is_transposed(module: nn.Module) -> bool:
    """Says whether a module is a linear map whose weight is [in, out], as GPT-2's.

    Such is the `Conv1D` of transformers; torch's own convolution has three dimensions.
    """
    weight = module._parameters.get("weight")
    return (
        type(module).__name__ == "Conv1D"
        and hasattr(module, "nf")
        and weight is not None
        and weight.ndim == 2
    )


def feature_dims(module: nn.Module) -> tuple[int, int]:
    """Returns which dimensions of the weight are (output, input) features.

    Example:
        >>> feature_dims(nn.Linear(4, 8)), feature_dims(nn.Embedding(10, 4))
        ((0, 1), (1, 0))
    """
    return (
        (1, 0) if isinstance(module, nn.Embedding) or is_transposed(module) else (0, 1)
    )


class Distributor:
    """Makes DTensors out of parameters, one for each: tied ones stay tied.

    Args:
        mesh: The tensor axis.
        src_data_rank: The rank of the axis whose values all get; None where they are
            known to be equal, which saves the exchange.
    """

    def __init__(self, mesh: DeviceMesh, src_data_rank: int | None) -> None:
        self.mesh = mesh
        self._source = src_data_rank
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter, int | None]] = {}

    def __call__(self, parameter: nn.Parameter, dim: int | None) -> nn.Parameter:
        """Returns the DTensor of a parameter, split along a dimension or replicated.

        Raises:
            PlanError: It was already made in another way, under another name.
        """
        if id(parameter) in self._made:
            _, made, made_dim = self._made[id(parameter)]
            if made_dim != dim:
                raise PlanError(
                    Code.TIED_PARAMS,
                    "tensor",
                    because="two modules share a parameter of shape "
                    f"{tuple(parameter.shape)}, and one splits it along dimension "
                    f"{made_dim}, the other along {dim}",
                    fix="untie them, or leave one of them whole",
                )
            return made
        made = self._distribute(parameter, parameter.detach(), dim)
        self._made[id(parameter)] = parameter, made, dim
        return made

    def in_parts(
        self, parameter: nn.Parameter, dim: int, sizes: Sequence[int]
    ) -> list[nn.Parameter]:
        """Returns the DTensors of the parts of a parameter, each split along `dim`."""
        if id(parameter) in self._made:
            raise PlanError(
                Code.TIED_PARAMS,
                "tensor",
                because=f"a parameter of shape {tuple(parameter.shape)} that two "
                "modules share cannot be divided into parts",
                fix="untie them, or leave both whole",
            )
        pieces = torch.split(parameter.detach(), list(sizes), dim)
        return [self._distribute(parameter, piece, dim) for piece in pieces]

    def rest(self, module: nn.Module) -> bool:
        """Replicates what parameters of a module are no DTensors yet.

        Returns:
            Whether there were any.
        """
        found = False
        for name, parameter in module._parameters.items():
            if parameter is None or hasattr(parameter, "placements"):
                continue
            made = self._made.get(id(parameter))
            module._parameters[name] = made[1] if made else self(parameter, None)
            found = True
        return found

    def _distribute(
        self, parameter: nn.Parameter, values: torch.Tensor, dim: int | None
    ) -> nn.Parameter:
        placement = Replicate() if dim is None else Shard(dim)
        values = on_each_rank(values.contiguous())
        made = distribute_tensor(
            values, self.mesh, [placement], src_data_rank=self._source
        )
        return nn.Parameter(made, requires_grad=parameter.requires_grad)


class _OurStyle(ParallelStyle):
    """A style that makes its parameters through a distributor.

    Args:
        distributor: Makes the parameters.
        style: What the plan says of the module.
        in_sequence: Whether ranks have other tokens each around the module.
    """

    def __init__(
        self,
        distributor: Distributor,
        style: ModuleStyle = _NO_STYLE,
        *,
        in_sequence: bool = False,
    ) -> None:
        super().__init__()
        self.distributor = distributor
        self.style = style
        self.in_sequence = in_sequence

    def _enter(self, module: nn.Module, mesh: DeviceMesh) -> None:
        change = _entry(mesh, in_sequence=self.in_sequence)
        if not self.style.is_entered:
            _change_input(module, change)


class Colwise(_OurStyle):
    """Splits output features."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        out_dim, _ = feature_dims(module)
        if is_transposed(module):
            module.nf = module.nf // device_mesh.size()  # type: ignore[operator, assignment]
        split_parameter(module, "weight", out_dim, self.style.parts, self.distributor)
        if module._parameters.get("bias") is not None:
            split_parameter(module, "bias", 0, self.style.parts, self.distributor)
        view_locally(module)
        if not isinstance(module, nn.Embedding):
            self._enter(module, device_mesh)
        if self.style.style is Style.COLWISE_GATHERED:
            _change_output(module, lambda y: gather(y, device_mesh))
        elif self.style.style is Style.COLWISE_LOSS:
            placements = [Shard(-1)]
            _change_output(
                module, lambda y: DTensor.from_local(y, device_mesh, placements)
            )
        return module


class Rowwise(_OurStyle):
    """Splits input features, and sums the outputs; the bias is added to the sum."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _, in_dim = feature_dims(module)
        split_parameter(module, "weight", in_dim, self.style.parts, self.distributor)
        self.distributor.rest(module)
        view_locally(module, added_later=("bias",))

        def finish(y: torch.Tensor) -> torch.Tensor:
            bias: Any = module._parameters.get("bias")
            bias = None if bias is None else bias.to_local()
            if self.in_sequence:
                y = scatter_out(y, device_mesh, SEQUENCE_DIM)
                bias = None if bias is None else enter(bias, device_mesh)
            else:
                y = reduce(y, device_mesh)
            return y if bias is None else y + bias

        _change_output(module, finish)
        return module


class VocabParallel(_OurStyle):
    """Splits the rows of an embedding; each rank looks up the ones it has."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Embedding)
        rows = module.num_embeddings // device_mesh.size()
        padding, module.padding_idx = module.padding_idx, None
        split_parameter(module, "weight", 0, (), self.distributor)
        view_locally(module)
        asked: list[torch.Tensor] = []

        def place(ids: torch.Tensor) -> torch.Tensor:
            return on_each_rank(ids) - device_mesh.get_local_rank() * rows

        def find(ids: torch.Tensor) -> torch.Tensor:
            asked.append(ids)
            return place(ids).clamp(0, rows - 1)

        def finish(y: torch.Tensor) -> torch.Tensor:
            ids = asked.pop()
            row = place(ids)
            is_mine = torch.logical_and(row >= 0, row < rows)
            y = reduce(y * is_mine.unsqueeze(-1), device_mesh)
            if padding is None:
                return y
            # The row of the padding gets no gradient, whoever has it.
            return torch.where(torch.eq(ids, padding).unsqueeze(-1), y.detach(), y)

        _change_input(module, find)
        _change_output(module, finish)
        return module


class Replicated(_OurStyle):
    """Gives every rank all of a module's own parameters that are not split."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        del device_mesh
        if self.distributor.rest(module):
            view_locally(module)
        return module


class Partial(_OurStyle):
    """Gives every rank all of a module's parameters, and sums their gradients."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.distributor.rest(module)
        view_locally(module, partial=True)
        self._enter(module, device_mesh)
        return module


class SplitParameters(_OurStyle):
    """Splits each of a module's own parameters along its first dimension."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        del device_mesh
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                split_parameter(module, name, 0, (), self.distributor)
        view_locally(module)
        return module


class Entry(ParallelStyle):
    """Lets arguments of a module enter the split part of the model.

    Args:
        arguments: Their names or positions.
        in_sequence: Whether ranks have other tokens each around the module.
    """

    def __init__(
        self, arguments: Sequence[str | int], *, in_sequence: bool = False
    ) -> None:
        super().__init__()
        self.arguments, self.in_sequence = tuple(arguments), in_sequence

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        change = _entry(device_mesh, in_sequence=self.in_sequence)
        changes = dict.fromkeys(self.arguments, change)
        _change_arguments(module, changes)
        return module


class SplitSequence(ParallelStyle):
    """Gives each rank a part of the sequence from here on.

    Args:
        argument: The argument of the module that is the residual stream.
    """

    def __init__(self, argument: str | int) -> None:
        super().__init__()
        self.argument = argument

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def change(x: torch.Tensor) -> torch.Tensor:
            return split(x, device_mesh, SEQUENCE_DIM)

        _change_arguments(module, {self.argument: change})
        return module


class JoinSequence(ParallelStyle):
    """Gives all ranks the whole sequence of a module's output again."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def change(output: Any) -> Any:
            if isinstance(output, tuple):
                return (change(output[0]), *output[1:])
            return gather(output, device_mesh, SEQUENCE_DIM)

        _change_output(module, change)
        return module


class HeadInputs(ParallelStyle):
    """Gives a rank the heads it has of some arguments of a module."""

    def __init__(self, inputs: Sequence[HeadInput]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def select(one: HeadInput) -> Callable[[torch.Tensor], torch.Tensor]:
            def run(x: torch.Tensor) -> torch.Tensor:
                dim = one.dim % x.ndim
                x = torch.unflatten(x, dim, (-1, one.heads))
                return split(x, device_mesh, dim + 1).flatten(dim, dim + 1)

            return run

        _change_arguments(module, {one.argument: select(one) for one in self.inputs})
        return module


def split_parameter(
    module: nn.Module,
    name: str,
    dim: int,
    parts: tuple[int, ...],
    distributor: Distributor,
) -> None:
    """Replaces a parameter by its DTensor, or by those of its parts."""
    parameter = module._parameters[name]
    assert parameter is not None
    if not parts:
        module._parameters[name] = distributor(parameter, dim)
        return
    shape = tuple(parameter.shape)
    made = distributor.in_parts(parameter, dim, parts)
    del module._parameters[name]
    packed_of(module)[name] = Packed(dim, parts, shape)
    for index, part in enumerate(made):
        module.register_parameter(part_name(name, index), part)


def _entry(
    mesh: DeviceMesh, *, in_sequence: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    if in_sequence:
        return lambda x: gather_in(x, mesh, SEQUENCE_DIM)
    return lambda x: enter(x, mesh)


def set_attributes(module: nn.Module, values: Mapping[str, int]) -> None:
    """Sets attributes; a name with a dot is set on a copy of the object it is of."""
    for name, value in values.items():
        owner: Any = module
        *path, last = name.split(".")
        for step in path:
            mine = copy.copy(getattr(owner, step))
            setattr(owner, step, mine)
            owner = mine
        setattr(owner, last, value)


def _change_input(
    module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, {**kwargs, first: change(kwargs[first])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _change_output(
    module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    module.register_forward_hook(lambda _, _args, output: change(output))


def _change_arguments(
    module: nn.Module,
    changes: Mapping[str | int, Callable[[torch.Tensor], torch.Tensor]],
) -> None:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found: list[Any] = list(args)
        named = dict(kwargs)
        for key, change in changes.items():
            if isinstance(key, int) and key < len(found):
                found[key] = _changed(found[key], change)
            elif key in named:
                named[key] = _changed(named[key], change)
        return tuple(found), named

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return change(value) if isinstance(value, torch.Tensor) else value
