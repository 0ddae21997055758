"""Leaves a rank its share of the experts of each layer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor, Shard

from drivetrain_core.extending import Forward, wrap_forward
from drivetrain_parallel.expert.dispatch import run_experts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

    from drivetrain_parallel.collective_channel import CollectiveChannel


def expert_parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters of a layer of experts that hold one matrix an expert.

    They are all of the layer's own of three dimensions, with as many experts each;
    empty where the module is no such layer.

    Example:
        >>> import torch
        >>> layer = nn.Module()
        >>> layer.up = nn.Parameter(torch.ones(4, 3, 2))
        >>> list(expert_parameters(layer))
        ['up']
    """
    own = dict(layer.named_parameters(recurse=False))
    whole = {name: p for name, p in own.items() if p.dim() == 3}
    numbers = {p.shape[0] for p in whole.values()}
    if len(numbers) != 1 or numbers == {1}:
        return {}
    (number,) = numbers
    # A bias has one row an expert.
    return {n: p for n, p in own.items() if p.dim() >= 2 and p.shape[0] == number}


def share_experts(
    layers: Iterable[nn.Module],
    exchange: CollectiveChannel,
    hold: Callable[[Tensor], nn.Parameter],
) -> None:
    """Changes layers in place: each keeps this rank's experts, and runs those of all.

    Args:
        layers: Layers whose forward takes (tokens, index, weights).
        exchange: The axis.
        hold: Makes a parameter out of this rank's experts.
    """
    for layer in layers:
        named = expert_parameters(layer)
        number = next(iter(named.values())).shape[0]
        num_local = number // exchange.size
        for name, parameter in named.items():
            local = parameter.detach().chunk(exchange.size)[exchange.rank].clone()
            kept = hold(local)
            kept.requires_grad_(parameter.requires_grad)
            setattr(layer, name, kept)
        # What the layer counts its experts by.
        for name, value in vars(layer).items():
            if type(value) is int and value == number and "expert" in name:
                setattr(layer, name, num_local)
        wrap_forward(layer, _sharing(exchange, num_local, tuple(named)))


def distribute(mesh: DeviceMesh) -> Callable[[Tensor], nn.Parameter]:
    """Returns what `share_experts` holds experts by: as a shard of all of them.

    Args:
        mesh: That of the axis.
    """

    def hold(local: Tensor) -> nn.Parameter:
        whole = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        return nn.Parameter(whole)

    return hold


def _sharing(
    exchange: CollectiveChannel, num_local: int, names: tuple[str, ...]
) -> Any:
    def around(forward: Forward) -> Forward:
        def run(
            self: nn.Module, /, tokens: Tensor, index: Tensor, weights: Tensor
        ) -> Tensor:
            def local(*args: Tensor) -> Tensor:
                with _as_local(self, names):
                    found: Tensor = forward(self, *args)
                return found

            return run_experts(local, exchange, num_local, tokens, index, weights)

        return run

    return around


@contextmanager
def _as_local(layer: nn.Module, names: tuple[str, ...]) -> Iterator[None]:
    """Shows the layer's forward plain tensors under the names of its parameters."""
    shown: list[str] = []
    for name in names:
        parameter: Any = layer._parameters[name]
        if isinstance(parameter, DTensor):
            # What stands in the instance is found before the parameter.
            vars(layer)[name] = parameter.to_local()
            shown.append(name)
    try:
        yield
    finally:
        for name in shown:
            del vars(layer)[name]
