"""Transfer of the training state, from a rank that has it to one that has none.

What travels is a description in JSON, then the bytes of the tensors one after another, in
parcels, then the sums of each parcel's words: a large tensor takes several parcels, and many
small ones share one, since a message takes longer to hand over than to carry. Nothing that
arrives is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from drivetrain_core import CheckpointError, DistributedError, ProgramError
from drivetrain_core.services import (
    TensorSpec,
    from_json,
    pack_state,
    plan_restoration,
    to_json,
)
from drivetrain_elastic._membership._world_group import with_others
from drivetrain_elastic._training._refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
    from typing import Self

    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

    from drivetrain_core.services import PackedState

_PARCEL_BYTES = 8 << 20
# So many are on their way at once.
_NUM_UNDER_WAY = 3
_MOST_HEADER_BYTES = 1 << 28
_TAG = 0x5354  # apart from whatever else two ranks may send each other


def give_state(group: ProcessGroup, to: int, state: Mapping[str, object]) -> int:
    """Sends a state to another rank, which calls `take_state`.

    Args:
        group: Both ranks are in it.
        to: The other one.
        state: By name: models, optimizers, whatever has a `state_dict`, and plain data, as
            `drivetrain_core.services.pack_state` takes them.

    Returns:
        The bytes of the tensors.

    Raises:
        RankLostError: The other rank is gone.
    """
    packed = pack_state(state)
    tensors = {name: _flat(one) for name, one in packed.tensors.items()}
    header = {
        "entries": to_json(packed.entries),
        "tensors": [
            [name, str(one.dtype).removeprefix("torch."), list(one.shape), len(flat)]
            for (name, one), flat in zip(
                packed.tensors.items(), tensors.values(), strict=True
            )
        ],
    }
    text = bytearray(json.dumps(header).encode())
    _send(group, to, torch.tensor([len(text)]))
    _send(group, to, torch.frombuffer(text, dtype=torch.uint8))
    data = [flat.contiguous().view(torch.uint8) for flat in tensors.values()]
    sums = []
    with _UnderWay() as under_way:
        for parcel in _parcels([len(one) for one in data]):
            parts = [data[at][start:end] for at, start, end in parcel]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            under_way.add(group.send([whole], to, _TAG))
            sums.append(_sum(whole))
    _send(group, to, torch.tensor(sums, dtype=torch.int64))
    return sum(len(one) for one in data)


def take_state(
    group: ProcessGroup, source: int, into: MutableMapping[str, object]
) -> int:
    """Receives a state from a rank that calls `give_state`, in place.

    Args:
        group: Both ranks are in it.
        source: The other one.
        into: The same kind of state, by the same names.

    Returns:
        The bytes of the tensors.

    Raises:
        CheckpointError: The state does not fit this one, which stays as it is.
        DistributedError: Something was damaged on its way.
        RankLostError: The other rank is gone.
    """
    size = torch.zeros(1, dtype=torch.int64)
    _receive(group, source, size)
    if not 0 < int(size) <= _MOST_HEADER_BYTES:
        message = f"rank {source} announces a state described in {int(size)} bytes"
        raise DistributedError(message)
    text = torch.empty(int(size), dtype=torch.uint8)
    _receive(group, source, text)
    header = _read_header(text, source)
    specs = {
        name: TensorSpec(
            name=name, global_shape=tuple(shape), dtype=getattr(torch, dtype)
        )
        for name, dtype, shape, _ in header["tensors"]
    }
    targets, finish = targets_in(into, from_json(header["entries"]), specs)
    places = [
        _Place(name, getattr(torch, dtype), num, targets.get(name), source)
        for name, dtype, _, num in header["tensors"]
    ]
    sizes = [place.num_bytes for place in places]
    parcels = list(_parcels(sizes))
    sums: list[int] = []
    with _UnderWay() as under_way:
        for parcel in parcels:
            parts = [places[at].bytes()[start:end] for at, start, end in parcel]
            whole = parts[0] if len(parts) == 1 else _empty(sum(map(len, parts)))
            settle = partial(_settle, places, parcel, parts, whole, sums)
            under_way.add(group.recv([whole], source, _TAG), settle)
    told = torch.zeros(len(parcels), dtype=torch.int64)
    _receive(group, source, told)
    for parcel, mine, theirs in zip(parcels, sums, told.tolist(), strict=True):
        if mine != theirs:
            first, more = places[parcel[0][0]].name, len(parcel) - 1
            names = f"{first!r} and {more} more" if more else repr(first)
            message = f"{names} from rank {source}: not what was sent came"
            raise DistributedError(message)
    for do in finish:
        do()
    return sum(sizes)


def targets_in(
    into: MutableMapping[str, object],
    entries: Mapping[str, Any],
    specs: Mapping[str, TensorSpec],
) -> tuple[dict[str, Tensor], list[Callable[[], object]]]:
    """Returns where the tensors of a state go, and what is to be done when they are there.

    Args:
        into: The same kind of state, by the same names.
        entries: Of the state, without its tensors.
        specs: Of its tensors.

    Raises:
        CheckpointError: The state does not fit.
    """
    plan = plan_restoration(into, entries, specs)
    for prepare in plan.prepare:
        prepare()
    targets = {name: one for part in plan.targets for name, one in part().items()}
    return targets, plan.finish


def specs_of(packed: PackedState) -> dict[str, TensorSpec]:
    """Returns what the tensors of a state look like."""
    return {
        name: TensorSpec(name=name, global_shape=tuple(one.shape), dtype=one.dtype)
        for name, one in packed.tensors.items()
    }


def _empty(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def _settle(
    places: Sequence[_Place],
    parcel: Sequence[tuple[int, int, int]],
    parts: Sequence[Tensor],
    whole: Tensor,
    sums: list[int],
) -> None:
    """Puts the bytes of a parcel that has come where they belong."""
    sums.append(_sum(whole))
    if len(parts) > 1:
        pieces = torch.split(whole, [len(part) for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece)
    for at, _, end in parcel:
        if end == places[at].num_bytes:
            places[at].settle()


class _UnderWay:
    """Waits for what was begun, in turn, and lets a few be under way meanwhile."""

    def __init__(self) -> None:
        self._works: deque[tuple[Work, Callable[[], None]]] = deque()

    def add(self, work: Work, then: Callable[[], None] = lambda: None) -> None:
        """Takes one more.

        Args:
            work: What was begun.
            then: What is to be done at its end.
        """
        self._works.append((work, then))
        while len(self._works) > _NUM_UNDER_WAY:
            self._wait()

    def _wait(self) -> None:
        work, then = self._works.popleft()
        with with_others():
            work.wait()
        then()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._works and kind is None:
                self._wait()
        finally:
            # What is under way may still write: nothing is let go of before it ends.
            for work, _then in self._works:
                with contextlib.suppress(RuntimeError):
                    work.wait()


class _Place:
    """Where the bytes of a tensor come to: its own memory, if that is as it travels.

    Args:
        name: Of the tensor.
        dtype: In which it travels.
        num_values: How many values travel.
        target: What they are for; None for nothing.
        source: The rank that sends them.

    Attributes:
        name: Of the tensor.
        num_bytes: How many there are.

    Raises:
        DistributedError: The target has another number of values.
    """

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        num_values: int,
        target: Tensor | None,
        source: int,
    ) -> None:
        self.name = name
        self.num_bytes = num_values * dtype.itemsize
        self._dtype = dtype
        self._bytes: Tensor | None = None
        self._target: Tensor | None = None
        if target is None:
            return
        local = target.to_local() if isinstance(target, DTensor) else target
        local = local.detach()
        if local.numel() != num_values:
            message = (
                f"rank {source} holds {num_values} values of {name!r} and this rank "
                f"{local.numel()}: they must hold the same part of it"
            )
            raise DistributedError(message)
        is_alike = local.device.type == "cpu" and local.dtype == dtype
        is_alike = is_alike and not (local.is_conj() or local.is_neg())
        if is_alike and local.is_contiguous() and num_values:
            self._bytes = local.view(-1).view(torch.uint8)
        else:
            self._target = local

    def bytes(self) -> Tensor:
        """Returns the memory to which they come."""
        if self._bytes is None:
            self._bytes = _empty(self.num_bytes)
        return self._bytes

    def settle(self) -> None:
        """Puts what has come where it belongs."""
        if self._target is not None:
            values = self.bytes().view(self._dtype)
            self._target.copy_(values.view(self._target.shape))
        self._bytes = None


def require_movable(state: Mapping[str, object]) -> None:
    """Refuses what could not be given to another rank, while nobody needs it yet.

    Args:
        state: As `give_state` takes it.

    Raises:
        ProgramError: Something in it has no memory of its own that could be written, or
            is of a type that is not known. It is named.

    Example:
        >>> require_movable({"model": torch.nn.Linear(2, 1), "epoch": 3})
    """
    packed = pack_state(state)
    problems = [
        f"{name!r} is a quantized tensor: give its values, and quantize them again"
        for name, one in packed.tensors.items()
        if one.is_quantized
    ]
    try:
        entries = from_json(to_json(packed.entries))
        plan_restoration(dict(state), entries, specs_of(packed))
    except CheckpointError as error:
        problems.append(str(error))
    if problems:
        refuse("state", problems="; ".join(problems))


def is_movable(tensor: Tensor | None) -> bool:
    """Returns whether a tensor has memory of its own, of the usual layout.

    Example:
        >>> is_movable(torch.ones(2)), is_movable(torch.ones(1).expand(2))
        (True, False)
    """
    try:
        require_movable({"tensor": tensor})
    except ProgramError:
        return False
    return tensor is not None


def state_digest(state: Mapping[str, object]) -> int:
    """Returns a number of 63 bits that differs, as a rule, where states differ.

    Args:
        state: As `give_state` takes it.
    """
    packed = pack_state(state)
    digest = hashlib.blake2b(json.dumps(to_json(packed.entries)).encode())
    for name, one in packed.tensors.items():
        digest.update(f"{name} {tuple(one.shape)} {one.dtype}".encode())
        digest.update(_flat(one).contiguous().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest()[:8], "little") >> 1


def _read_header(text: Tensor, source: int) -> dict[str, Any]:
    try:
        header = json.loads(text.numpy().tobytes())
        rows = [tuple(row) for row in header["tensors"]]
        is_known = "entries" in header and all(_is_row(row) for row in rows)
    except (ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        message = f"rank {source} describes its state in a way that nobody here knows"
        raise DistributedError(message)
    return {"entries": header["entries"], "tensors": rows}


def _is_row(row: tuple[Any, ...]) -> bool:
    name, dtype, shape, num_values = row
    return (
        isinstance(name, str)
        and isinstance(getattr(torch, str(dtype), None), torch.dtype)
        and all(type(dim) is int and dim >= 0 for dim in shape)
        and type(num_values) is int
        and 0 <= num_values <= math.prod(shape)
    )


def _flat(tensor: Tensor) -> Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().resolve_conj().resolve_neg().reshape(-1).cpu()


def _parcels(sizes: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yields what travels at once: which tensors, and which of their bytes.

    Args:
        sizes: The bytes of each tensor.
    """
    parcel: list[tuple[int, int, int]] = []
    room = _PARCEL_BYTES
    for at, size in enumerate(sizes):
        if parcel and size > room:
            yield parcel
            parcel, room = [], _PARCEL_BYTES
        for start in range(0, size, _PARCEL_BYTES):
            end = min(size, start + _PARCEL_BYTES)
            parcel.append((at, start, end))
            room -= end - start
            if end < size:
                yield parcel
                parcel, room = [], _PARCEL_BYTES
    if parcel:
        yield parcel


def _sum(data: Tensor) -> int:
    """Returns the sum of all words of eight bytes, which wraps, and of what is left."""
    whole = len(data) // 8 * 8
    # A copy where the memory does not begin at a word.
    words = data[:whole]
    if words.data_ptr() % 8:
        words = words.clone()
    total = words.view(torch.int64).sum() + data[whole:].sum(dtype=torch.int64)
    return int(total)


def _send(group: ProcessGroup, to: int, tensor: Tensor) -> None:
    with with_others():
        group.send([tensor.contiguous()], to, _TAG).wait()


def _receive(group: ProcessGroup, source: int, tensor: Tensor) -> None:
    with with_others():
        group.recv([tensor], source, _TAG).wait()
