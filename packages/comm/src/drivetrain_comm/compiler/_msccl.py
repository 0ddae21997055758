"""Schedules as MSCCL XML, for GPUs: written, and read back so that they can be proven.

NCCL itself does not read such files: the executor of MSCCL does, a fork of NCCL that
takes its library's place, and RCCL. What is written is for calls in place.

Each thread block has one peer to send to or one to receive from, and works through its
steps in their order. A step may wait for one step of another block; where it has to wait
for more, steps that do nothing come before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._msccl_form import (
    COLLECTIVES,
    NOP,
    TYPES,
    Block,
    Entry,
    form_of,
)
from drivetrain_comm.compiler._verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.compiler._schedule import Schedule

_PROTOCOLS = ("LL", "LL128", "Simple")
_MOST_BLOCKS = 32  # of a GPU, per channel
_MOST_STEPS = 512  # of a thread block


def to_msccl(
    schedule: Schedule,
    *,
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int = 1 << 40,
) -> str:
    """Returns a schedule as an MSCCL algorithm.

    Args:
        schedule: It is verified here.
        protocol: "LL", "LL128" or "Simple".
        min_bytes: For vectors of this size.
        max_bytes: And up to this.

    Raises:
        ScheduleError: The schedule is wrong, or larger than the executor can take.

    Example:
        >>> from drivetrain_comm.compiler import Transfer, schedule_of
        >>> pair = schedule_of("pair", "broadcast", 2, [0], [Transfer(0, 1, 0)])
        >>> to_msccl(pair).split()[:2]
        ['<algo', 'name="pair"']
    """
    verify(schedule)
    if protocol not in _PROTOCOLS:
        message = f"protocol must be one of {', '.join(_PROTOCOLS)}, got {protocol!r}"
        raise ScheduleError(message)
    if not 0 <= min_bytes <= max_bytes:
        message = (
            f"sizes must be 0 <= min_bytes <= max_bytes, got {min_bytes}, {max_bytes}"
        )
        raise ScheduleError(message)
    root = ET.Element(
        "algo",
        name=schedule.name,
        proto=protocol,
        nchannels="1",
        nchunksperloop=str(schedule.num_chunks),
        ngpus=str(schedule.num_ranks),
        coll=COLLECTIVES[schedule.collective],
        inplace="1",
        outofplace="0",
        minBytes=str(min_bytes),
        maxBytes=str(max_bytes),
    )
    part = schedule.num_chunks // schedule.num_ranks
    if schedule.collective in ("all_gather", "reduce_scatter"):
        _require_parts(schedule, part)
    form = form_of(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    for rank, program in enumerate(schedule.programs):
        gpu = ET.SubElement(
            root,
            "gpu",
            id=str(rank),
            i_chunks=str(form.inputs),
            o_chunks=str(form.outputs),
            s_chunks="0",
        )
        _write_blocks(gpu, rank, _blocks(program), form.buffer)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _require_parts(schedule: Schedule, part: int) -> None:
    wanted = [chunk // part for chunk in range(schedule.num_chunks)] if part else []
    if list(schedule.owners) != wanted:
        message = (
            f"{schedule.name}: in MSCCL rank r owns part r of the vector, but the "
            f"owners are {list(schedule.owners)}"
        )
        raise ScheduleError(message)


def _blocks(program: Sequence[Step]) -> list[Block]:
    blocks: list[Block] = []
    number: dict[tuple[bool, int], int] = {}
    written: dict[int, tuple[int, int]] = {}
    read: dict[int, list[tuple[int, int]]] = {}
    for step in program:
        kind, peer, chunk = step
        if kind == Kind.FINISH:
            continue
        sends = kind == Kind.SEND
        if (sends, peer) not in number:
            number[sends, peer] = len(blocks)
            blocks.append(Block(peer if sends else -1, -1 if sends else peer))
        at = number[sends, peer]
        entries = blocks[at].entries
        before = [written[chunk]] if chunk in written else []
        if not sends:
            before = [*read.pop(chunk, []), *before]
        latest: dict[int, int] = {}
        for block, index in before:
            if block != at:
                latest[block] = max(index, latest.get(block, -1))
        waits = list(latest.items())
        entries += [Entry(None, wait) for wait in waits[:-1]]
        entries.append(Entry(step, waits[-1] if waits else None))
        place = at, len(entries) - 1
        if sends:
            read.setdefault(chunk, []).append(place)
        else:
            written[chunk] = place
    return blocks


def _write_blocks(
    gpu: ET.Element, rank: int, blocks: Sequence[Block], buffer: str
) -> None:
    if len(blocks) > _MOST_BLOCKS:
        message = (
            f"rank {rank} has {len(blocks)} peers to send to and receive from; the "
            f"executor takes {_MOST_BLOCKS}"
        )
        raise ScheduleError(message)
    waited = {e.waits_for for block in blocks for e in block.entries}
    for number, block in enumerate(blocks):
        if len(block.entries) > _MOST_STEPS:
            message = (
                f"rank {rank} has {len(block.entries)} steps with one peer; the "
                f"executor takes {_MOST_STEPS}: cut the vector into fewer chunks"
            )
            raise ScheduleError(message)
        element = ET.SubElement(
            gpu,
            "tb",
            id=str(number),
            send=str(block.send),
            recv=str(block.receive),
            chan="0",
        )
        for at, entry in enumerate(block.entries):
            chunk = str(entry.step.chunk if entry.step else -1)
            depends = entry.waits_for or (-1, -1)
            ET.SubElement(
                element,
                "step",
                s=str(at),
                type=TYPES[entry.step.kind] if entry.step else NOP,
                srcbuf=buffer,
                srcoff=chunk,
                dstbuf=buffer,
                dstoff=chunk,
                cnt="1" if entry.step else "0",
                depid=str(depends[0]),
                deps=str(depends[1]),
                hasdep=str(int((number, at) in waited)),
            )
