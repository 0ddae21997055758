"""Batches: parameters that one call of an implementation can step together."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from drivetrain_optim.batched._hash import mix
from drivetrain_optim.batched._signature import Signature
from drivetrain_optim.batched._state import is_freed, local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

_STEP = itemgetter("step")
_ItemT = TypeVar("_ItemT")

# A batch of torch's operators is also the bound on their temporaries. On a CPU it is
# small, so that the passes of one step find its tensors in the cache; elsewhere large,
# to spare kernel launches.
_BATCH_NUMEL = {"cpu": 1 << 18}
_BATCH_NUMEL_ELSEWHERE = 1 << 26


def batch_limit(device: torch.device) -> int:
    """Returns how many elements a batch of torch's operators may have on a device."""
    return _BATCH_NUMEL.get(device.type, _BATCH_NUMEL_ELSEWHERE)


def split_by_size(
    items: Sequence[_ItemT], sizes: Iterable[int], limit: float
) -> Iterator[list[_ItemT]]:
    """Yields items in order, as many at a time as a limit allows, one at least.

    Args:
        items: What is split, not empty.
        sizes: That of each item.
        limit: On the sum of the sizes.

    Example:
        >>> list(split_by_size("abcd", [1, 1, 5, 1], 2))
        [['a', 'b'], ['c'], ['d']]
    """
    part: list[_ItemT] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if part and total + size > limit:
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    yield part


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the parameters of one batch have in common.

    Args:
        path: The implementation, a key of `PATHS`.
        because: Why it was chosen.
        device: Where the parameters lie.
        dtypes: Those of the weights, the gradients and the moments.
        moments: The names of the moments.
        master: Whether they have master weights.
        stochastic: Whether weights are rounded stochastically.
        sharded: The mesh and its dimensions over which each parameter is split, or
            None where it is whole.
        adapts: Whether LAMB scales their steps by the trust ratio.
        step: The number of steps taken when the batch was made; None for any.
    """

    path: str
    because: str
    device: torch.device
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    moments: tuple[str, ...]
    master: bool
    stochastic: bool
    sharded: tuple[Any, tuple[int, ...]] | None
    adapts: bool
    step: float | None

    @property
    def is_fused(self) -> bool:
        """Whether a kernel steps them."""
        return self.path in {"native", "triton"}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of arithmetic, at least float32."""
        weight, _, moment = self.dtypes
        wider = torch.promote_types(weight, moment)
        return torch.promote_types(wider, torch.float32)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the tensors of a parameter's state that look like it."""
        return (*self.moments, "master") if self.master else self.moments


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter that has a gradient.

    Args:
        position: Its position in its group.
        index: Its position in the optimizer, which tells random bits apart.
        param: The parameter.
        state: What the optimizer keeps for it.
    """

    position: int
    index: int
    param: Tensor
    state: dict[str, Any]


@dataclass(slots=True)
class Batch:
    """Parameters of one group and one kind.

    Their step counts lie in one tensor, of which each `step` in the state is an
    element. No other tensor of the state is referred to, so that whoever moves the
    state elsewhere frees its memory.

    Args:
        kind: What they have in common.
        entries: The parameters.
    """

    kind: Kind
    entries: Sequence[Entry]
    params: list[Tensor] = field(init=False)
    states: list[dict[str, Any]] = field(init=False)
    steps: Tensor = field(init=False)
    addresses: list[list[int]] = field(init=False)
    grad_addresses: list[int] = field(init=False)
    _place: Callable[[Tensor], int] = field(init=False)
    _is_whole: bool = field(init=False)
    _looks: Signature = field(init=False)
    _grad_looks: Signature | None = field(init=False)
    _views: list[Tensor] = field(init=False)
    _indices: NDArray[np.uint32] = field(init=False)

    def __post_init__(self) -> None:
        """Packs the step counts and notes where every tensor lies, and its look."""
        self.params = [entry.param for entry in self.entries]
        self.states = [entry.state for entry in self.entries]
        self.steps = torch.stack([state["step"] for state in self.states])
        self._views = list(self.steps.unbind())
        for state, view in zip(self.states, self._views, strict=True):
            state["step"] = view
        columns = self._columns()
        # A fake tensor lies nowhere.
        is_fake = isinstance(columns[0][0], FakeTensor)
        self._place = id if is_fake else torch.Tensor.data_ptr
        self.addresses = [list(map(self._place, column)) for column in columns]
        self._looks = Signature([tensor for column in columns for tensor in column])
        self.grad_addresses = []
        self._grad_looks = None
        positions = [entry.position for entry in self.entries]
        self._is_whole = positions == list(range(len(positions)))
        indices = np.array([entry.index for entry in self.entries], dtype=np.uint32)
        self._indices = indices * np.uint32(0x9E3779B1)

    def holds(self) -> bool:
        """Whether every tensor still is where and what it was when this was made."""
        try:
            if not all(map(is_, map(_STEP, self.states), self._views)):
                return False
            columns = self._columns()
            addresses = [list(map(self._place, column)) for column in columns]
        # Someone took a tensor out of the state, or put something else there.
        except (KeyError, TypeError, RuntimeError):
            return False
        if addresses != self.addresses:
            return False
        if not self._looks.fits([tensor for column in columns for tensor in column]):
            return False
        return self.kind.step is None or len(set(self.steps.tolist())) == 1

    def local_grads(self, of_group: Sequence[Tensor | None]) -> list[Tensor] | None:
        """Returns the local gradients; None if they do not look as they did before.

        Args:
            of_group: The gradients of all parameters of the group.
        """
        grads: Any = of_group
        if not (self._is_whole and len(of_group) == len(self.entries)):
            grads = [of_group[entry.position] for entry in self.entries]
        if self.kind.sharded is not None:
            pairs = zip(grads, self.params, strict=True)
            grads = [local_part(grad, like=param) for grad, param in pairs]
        if self._grad_looks is None:
            self._grad_looks = Signature(grads)
        elif not self._grad_looks.fits(grads):
            return None
        self.grad_addresses = list(map(self._place, grads))
        if 0 in self.grad_addresses and any(map(is_freed, grads)):
            return None
        return list(grads)

    def local(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Returns the local parts of tensors that are sharded like the parameters."""
        if self.kind.sharded is None:
            return list(tensors)
        return [local_part(tensor) for tensor in tensors]

    def kept(self, name: str) -> list[Tensor]:
        """Returns the local parts of what the state keeps under a name."""
        return self.local(map(itemgetter(name), self.states))

    def seeds(self) -> NDArray[np.uint32]:
        """Returns the seed of each parameter's random bits at the coming step."""
        salt = int(self.steps[0].item()) * 0x85EBCA77 + self._shard() * 0xC2B2AE3D
        return mix(self._indices + np.uint32(salt & 0xFFFFFFFF))

    def _shard(self) -> int:
        """Returns a number that is the same on ranks that hold the same shards."""
        if self.kind.sharded is None:
            return 0
        mesh, axes = self.kind.sharded
        number = 0
        for axis in axes:
            number = number * int(mesh.size(axis)) + int(mesh.get_local_rank(axis))
        return number

    def _columns(self) -> list[list[Tensor]]:
        """Returns the local weights, moments and master weights, a list of each."""
        return [self.local(self.params), *map(self.kept, self.kind.kept)]
