"""Layout of a parameter group: the batches in which it is stepped, kept between steps."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from drivetrain_optim._errors import UnsupportedTensorError
from drivetrain_optim.batched._batch import (
    Batch,
    Entry,
    Kind,
    batch_limit,
    split_by_size,
)
from drivetrain_optim.batched._paths import Choice, choose_path
from drivetrain_optim.batched._state import is_plain, local_part, make_state
from drivetrain_optim.checks._state_checks import check_state
from drivetrain_optim.checks._tensor_checks import parameter_names
from drivetrain_optim.fused import _native, _triton
from drivetrain_optim.fused._table import DTYPE_CODES, Table, is_dense

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

# What a layout depends on; a change of any other option needs no new one.
_OPTIONS = (
    "amsgrad",
    "adapt",
    "weight_decay",
    "foreach",
    "fused",
    "capturable",
    "state_dtype",
    "master_weights",
    "stochastic_rounding",
)


class Part(NamedTuple):
    """A batch, and its pointer table if a kernel steps it."""

    batch: Batch
    table: Table | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The batches of one group, as long as nothing moves.

    Args:
        params: The parameters of the group.
        present: Which of them have a gradient.
        options: The options that the batches depend on.
        parts: The batches.
    """

    params: list[Tensor]
    present: list[bool]
    options: tuple[object, ...]
    parts: list[Part]

    def holds(self, group: Mapping[str, Any], present: Sequence[bool]) -> bool:
        """Whether the next step can use the batches as they are."""
        params = group["params"]
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and present == self.present
            and self.options == _options_of(group)
            and all(part.batch.holds() for part in self.parts)
        )


def make_layout(
    optimizer: str,
    group: Mapping[str, Any],
    *,
    state: Mapping[Tensor, dict[str, Any]],
    moments: Sequence[str],
    index: int,
    first_index: int,
) -> Layout:
    """Returns the batches of a group; what the state lacks is added.

    Args:
        optimizer: The optimizer's name, for messages.
        group: The group, whose gradients were checked.
        state: The optimizer's state, which makes an entry for a new parameter.
        moments: The names of the moments that the group's options ask for.
        index: The number of the group.
        first_index: The position of the group's first parameter in the optimizer.

    Raises:
        HyperparameterError: A kernel is asked for that does not exist here.
        StateDictError: The state does not fit its parameter.
    """
    params = list(group["params"])
    names = parameter_names(index, group)
    # All that may raise comes before the first state is made or laid out anew.
    found = []
    for position, param in enumerate(params):
        if param.grad is None:
            continue
        choice = choice_for(optimizer, group, param)
        kept = state.get(param, {})
        check_state(optimizer, names[position], param, kept, (*moments, "master"))
        if choice.path in {"native", "triton"}:
            because = _unfit_because(param, kept, moments)
            if because and group["fused"]:
                message = f"{optimizer}: fused=True, but {names[position]}: {because}"
                raise UnsupportedTensorError(message)
            choice = Choice("foreach", because) if because else choice
        found.append((position, param, choice))
    kinds: dict[Kind, list[Entry]] = {}
    for position, param, (path, because) in found:
        kept = state[param]
        make_state(
            kept,
            param,
            moments=moments,
            state_dtype=group["state_dtype"],
            master=group["master_weights"],
            step_device=step_device(param, group),
        )
        if path in {"native", "triton"}:
            _lay_like(param, kept, (*moments, "master"))
        assert param.grad is not None
        kind = Kind(
            path=path,
            because=because,
            device=param.device,
            dtypes=(param.dtype, param.grad.dtype, kept[moments[0]].dtype),
            moments=tuple(moments),
            master="master" in kept and group["master_weights"],
            stochastic=group["stochastic_rounding"] and param.dtype is torch.bfloat16,
            sharded=shards_of(param),
            adapts=_adapts(group),
            step=None if is_unread(group, param) else kept["step"].item(),
        )
        entry = Entry(position, first_index + position, param, kept)
        kinds.setdefault(kind, []).append(entry)
    batches = [
        Batch(kind, part)
        for kind, entries in kinds.items()
        for part in _split(kind, entries)
    ]
    parts = [Part(b, Table(b) if b.kind.is_fused else None) for b in batches]
    present = [param.grad is not None for param in params]
    return Layout(params, present, _options_of(group), parts)


def _unfit_because(
    param: Tensor, kept: Mapping[str, Any], moments: Sequence[str]
) -> str | None:
    """Returns why a kernel cannot read a gradient or a state, or None if it can."""
    grad = local_part(param.grad, like=param)  # type: ignore[arg-type]
    there = [kept[name] for name in moments if name in kept]
    masters = [kept["master"]] if "master" in kept else []
    if not all(map(is_plain, [grad, *map(local_part, [*there, *masters])])):
        return (
            "a gradient, a moment or a master is a view or a wrapper, which kernels "
            "cannot read"
        )
    if grad.dtype not in DTYPE_CODES:
        return f"there are no kernels for gradients in {grad.dtype}"
    if len({tensor.dtype for tensor in there}) > 1:
        return "the moments of a parameter have several dtypes"
    if any(tensor.dtype not in DTYPE_CODES for tensor in there):
        return f"there are no kernels for moments in {there[0].dtype}"
    if "master" in kept and kept["master"].dtype is not torch.float32:
        return f"the master weights are in {kept['master'].dtype}"
    return None


def _lay_like(param: Tensor, kept: dict[str, Any], names: Iterable[str]) -> None:
    """Lays the state out in memory as the parameter is, which kernels rely on."""
    wanted = local_part(param).stride()
    for name in names:
        if name in kept and local_part(kept[name]).stride() != wanted:
            old = kept[name]
            kept[name] = torch.empty_like(param, dtype=old.dtype).copy_(old)


def step_device(param: Tensor, group: Mapping[str, Any]) -> torch.device:
    """Returns where a parameter's step count lies."""
    return param.device if group["capturable"] else torch.device("cpu")


def is_unread(group: Mapping[str, Any], param: Tensor) -> bool:
    """Whether a step may read no number of a parameter's state: a fake one has none."""
    return group["capturable"] or isinstance(local_part(param), FakeTensor)


def _options_of(group: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(group.get(name) for name in _OPTIONS)


def choice_for(optimizer: str, group: Mapping[str, Any], param: Tensor) -> Choice:
    """Returns how a parameter of a group is stepped.

    Raises:
        HyperparameterError: A kernel is asked for that does not exist here.
    """
    return choose_path(
        optimizer,
        foreach=group["foreach"],
        fused=group["fused"],
        capturable=is_unread(group, param),
        device=param.device.type,
        fused_missing=_fused_missing(param),
    )


def _fused_missing(param: Tensor) -> str | None:
    """Returns why a parameter has no fused kernel, or None if it has one."""
    if param.dtype not in DTYPE_CODES:
        return f"there are no kernels for {param.dtype}"
    if not is_plain(local_part(param)):
        kind = "on meta" if param.is_meta else f"a {type(param).__name__}"
        return f"a parameter is {kind}, which kernels cannot read"
    if not is_dense(local_part(param)):
        return f"a parameter of shape {tuple(param.shape)} is not dense in memory"
    if param.device.type == "cpu":
        return _native.missing_because()
    return _triton.missing_because(param.device)


def _adapts(group: Mapping[str, Any]) -> bool:
    adapt = group.get("adapt", "none")
    return bool(adapt == "all" or (adapt == "decayed" and group["weight_decay"]))


def shards_of(param: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Returns the mesh of a DTensor and the dimensions over which it is split."""
    if not hasattr(param, "to_local"):
        return None
    axes = (axis for axis, p in enumerate(param.placements) if not p.is_replicate())
    return param.device_mesh, tuple(axes)


def _split(kind: Kind, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    limit = float("inf") if kind.is_fused else batch_limit(kind.device)
    sizes = [local_part(entry.param).numel() for entry in entries]
    return split_by_size(entries, sizes, limit)
