"""Buffers and chunks of NCCL, and the socket buffers that it may set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import KERNEL, TUNING, issue
from drivetrain_fabric.adviser._versions import default_of

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

# A buffer is a ring of 8 steps.
_STEPS = 8
_BUFFER, _CHUNK = "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"
_MOST_BUFFER = 64 << 20


def p2p_step_bytes(facts: Facts) -> int:
    """Returns the largest step of a send that NCCL makes, with what is set.

    Args:
        facts: What is set, and the version.

    Example:
        >>> from drivetrain_fabric.adviser import Facts
        >>> p2p_step_bytes(Facts())
        131072
    """
    chunk = facts.number_of(_CHUNK) or int(default_of(_CHUNK, facts.nccl) or 131_072)
    return min(chunk, _buffer_bytes(facts) // _STEPS)


def advise_buffers(facts: Facts) -> list[Advice | Gap]:
    """Returns sizes of buffers, and which not to touch.

    Nothing here makes chunks larger. A report that 1 MiB gave 7 times the speed was
    withdrawn by its author: the data that arrived were wrong.

    Args:
        facts: What is known.
    """
    return [*_chunks(facts), *_ring(facts), *_socket_buffers(facts)]


def _chunks(facts: Facts) -> list[Advice | Gap]:
    found: list[Advice | Gap] = []
    chunk = facts.number_of("NCCL_CHUNK_SIZE")
    step = p2p_step_bytes(facts)
    if chunk is not None and chunk > step:
        because = (
            f"{chunk} is more than a step of a send holds, {step}: it writes past its "
            "place, with wrong data and faults on the GPU, or hangs"
        )
        source = issue("NVIDIA/nccl#2408 and #2410")
        found.append(env("NCCL_CHUNK_SIZE", None, "bad", because, source))
    wanted = facts.number_of(_CHUNK)
    limit = _buffer_bytes(facts) // _STEPS
    if limit < 1:
        because = (
            f"{_buffer_bytes(facts)} bytes hold none of the {_STEPS} steps of a ring"
        )
        found.append(env(_BUFFER, None, "bad", because, TUNING))
    elif wanted is not None and wanted > limit:
        because = f"NCCL takes an eighth of {_BUFFER} at most, {limit}, not {wanted}"
        source = issue("NVIDIA/nccl#2410")
        found.append(env(_CHUNK, str(limit), "warn", because, source))
    return found


def _ring(facts: Facts) -> list[Advice | Gap]:
    """Returns a larger ring where one channel cannot fill a long network."""
    under_way = facts.bdp_bytes
    if facts.transport is None or under_way is None:
        return []
    now = _buffer_bytes(facts)
    if now < _STEPS or under_way <= now or now >= _MOST_BUFFER:
        return []
    wanted = min(1 << (under_way - 1).bit_length(), _MOST_BUFFER)
    because = (
        f"{under_way} bytes are under way when the network is full, a channel keeps "
        f"{now}; it costs memory of the GPU for each channel and peer"
    )
    return [env(_BUFFER, str(wanted), "try", because, TUNING)]


def _socket_buffers(facts: Facts) -> list[Advice | Gap]:
    found: list[Advice | Gap] = []
    for name in ("NCCL_SOCKET_RCVBUF", "NCCL_SOCKET_SNDBUF"):
        size = facts.number_of(name)
        # What older versions do not know is a problem of another kind.
        if size is None or size < 0 or facts.nccl < (2, 27):
            continue
        because = (
            f"{size} bytes are fixed with it; without, the kernel sizes buffers by "
            "what is under way"
        )
        found.append(env(name, None, "try", because, KERNEL))
    return found


def _buffer_bytes(facts: Facts) -> int:
    return facts.number_of(_BUFFER) or int(default_of(_BUFFER, facts.nccl) or 1 << 22)
