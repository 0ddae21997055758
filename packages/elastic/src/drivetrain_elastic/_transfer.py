"""The whole state of a training, from a rank that has it to one that has none.

What travels is a description in JSON, then the tensors one after another, in chunks each
of which is followed by the sum of its words. Nothing that arrives is run.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from drivetrain_core import DistributedError
from drivetrain_core.services import (
    TensorSpec,
    from_json,
    pack_state,
    plan_restoration,
    to_json,
)
from drivetrain_elastic._group import with_others

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

    from torch import Tensor
    from torch.distributed import ProcessGroup

__all__ = ["give_state", "state_digest", "take_state"]

_CHUNK_BYTES = 8 << 20
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
    num_bytes = 0
    for flat in tensors.values():
        for chunk in _chunks(flat):
            _send(group, to, chunk)
            _send(group, to, _sum(chunk))
        num_bytes += flat.nbytes
    return num_bytes


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
    plan = plan_restoration(into, from_json(header["entries"]), specs)
    for prepare in plan.prepare:
        prepare()
    targets: dict[str, Tensor] = {}
    for part in plan.targets:
        targets.update(part())
    num_bytes = 0
    for name, dtype, _, num_values in header["tensors"]:
        flat = torch.empty(num_values, dtype=getattr(torch, dtype))
        for at, chunk in enumerate(_chunks(flat)):
            _receive(group, source, chunk)
            told = torch.zeros(1, dtype=torch.int64)
            _receive(group, source, told)
            if not torch.equal(told, _sum(chunk)):
                message = (
                    f"chunk {at} of {name!r} from rank {source} is not what was sent"
                )
                raise DistributedError(message)
        num_bytes += flat.nbytes
        if name in targets:
            _write(targets[name], flat, name, source)
    for finish in plan.finish:
        finish()
    return num_bytes


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
    return local.detach().reshape(-1).cpu()


def _write(target: Tensor, flat: Tensor, name: str, source: int) -> None:
    local = target.to_local() if isinstance(target, DTensor) else target
    if local.numel() != len(flat):
        message = (
            f"rank {source} holds {len(flat)} values of {name!r} and this rank "
            f"{local.numel()}: they must hold the same part of it"
        )
        raise DistributedError(message)
    with torch.no_grad():
        local.copy_(flat.view(local.shape))


def _chunks(flat: Tensor) -> Iterator[Tensor]:
    num = max(1, _CHUNK_BYTES // flat.itemsize)
    yield from torch.split(flat, num) if len(flat) else ()


def _sum(chunk: Tensor) -> Tensor:
    """Returns the sum of all words of eight bytes, which wraps, and of what is left."""
    data = chunk.view(torch.uint8)
    whole = len(data) // 8 * 8
    # A copy where the memory of the chunk does not begin at a word.
    words = data[:whole]
    if words.data_ptr() % 8:
        words = words.clone()
    total = words.view(torch.int64).sum() + data[whole:].sum(dtype=torch.int64)
    return total.reshape(1)


def _send(group: ProcessGroup, to: int, tensor: Tensor) -> None:
    with with_others():
        group.send([tensor.contiguous()], to, _TAG).wait()


def _receive(group: ProcessGroup, source: int, tensor: Tensor) -> None:
    with with_others():
        group.recv([tensor], source, _TAG).wait()
