"""MSCCL XML, read back, so that what is written is proven like any other schedule.

Only the form that is written here is read: calls in place, one channel, whole chunks.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
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
    Form,
    form_of,
)
from drivetrain_comm.compiler._schedule import Schedule
from drivetrain_comm.compiler._verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KINDS = {name: kind for kind, name in TYPES.items()}
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_Node = tuple[int, int]
"""A thread block and the index of a step in it."""


def from_msccl(text: str) -> Schedule:
    """Returns the schedule of an algorithm that `to_msccl` has written.

    Args:
        text: The XML.

    Raises:
        ScheduleError: It is no such algorithm: something is missing, a step waits for
            one that there is not, two steps on one chunk are in no order, or the whole
            does not do what it should. The message says where.
    """
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        message = f"an MSCCL algorithm is XML: {error}"
        raise ScheduleError(message) from error
    if root.tag != "algo":
        message = f"an MSCCL algorithm begins with <algo>, got <{root.tag}>"
        raise ScheduleError(message)
    names = {name: ours for ours, name in COLLECTIVES.items()}
    coll = _word(root, "coll", "<algo>")
    if coll not in names:
        message = f"<algo> has coll={coll!r}; known are {', '.join(names)}"
        raise ScheduleError(message)
    for name, value in (("inplace", "1"), ("outofplace", "0"), ("nchannels", "1")):
        if _word(root, name, "<algo>") != value:
            message = f"<algo>: only {name}={value!r} is read, got {root.get(name)!r}"
            raise ScheduleError(message)
    num_ranks = _number(root, "ngpus", "<algo>")
    num_chunks = _number(root, "nchunksperloop", "<algo>")
    gpus = root.findall("gpu")
    ids = sorted(_number(gpu, "id", "<gpu>") for gpu in gpus)
    if len(ids) != num_ranks or ids != list(range(num_ranks)):
        message = f"<algo> has ngpus={num_ranks}, but its gpus are {ids}"
        raise ScheduleError(message)
    if not 0 < num_chunks <= len(root.findall("gpu/tb/step")):
        message = f"<algo>: nchunksperloop={num_chunks} is more than steps can move"
        raise ScheduleError(message)
    gpus.sort(key=lambda gpu: int(gpu.get("id", "0")))
    form = form_of(names[coll], num_ranks, num_chunks)
    programs = [
        _program(rank, _read_blocks(rank, gpu, form)) for rank, gpu in enumerate(gpus)
    ]
    owners = _owners(names[coll], programs, num_chunks)
    if names[coll] in ("all_reduce", "reduce_scatter"):
        programs = [
            _with_finish(rank, program, owners) for rank, program in enumerate(programs)
        ]
    name = _word(root, "name", "<algo>")
    schedule = Schedule.of(name, names[coll], owners, programs)
    verify(schedule)
    return schedule


def _read_blocks(rank: int, gpu: ET.Element, form: Form) -> list[Block]:
    sizes = {"i_chunks": form.inputs, "o_chunks": form.outputs, "s_chunks": 0}
    for name, wanted in sizes.items():
        if _number(gpu, name, f"gpu {rank}") != wanted:
            message = f"gpu {rank}: {name} must be {wanted}, got {gpu.get(name)}"
            raise ScheduleError(message)
    blocks = []
    peers: set[tuple[str, int]] = set()
    signals = []
    for number, element in enumerate(gpu.findall("tb")):
        where = f"gpu {rank}, tb {number}"
        if _number(element, "chan", where) != 0:
            message = f"{where}: only channel 0 is read, got {element.get('chan')}"
            raise ScheduleError(message)
        for side in ("send", "recv"):
            peer = _number(element, side, where)
            if peer >= 0 and (side, peer) in peers:
                message = f"{where}: another block has {side}={peer} too"
                raise ScheduleError(message)
            peers.add((side, peer))
        if _number(element, "id", where) != number:
            message = f"{where}: ids must be 0, 1, 2 and so on"
            raise ScheduleError(message)
        block = Block(_number(element, "send", where), _number(element, "recv", where))
        for at, step in enumerate(element.findall("step")):
            here = f"{where}, step {at}"
            block.entries.append(_entry(step, block, at, here, form.buffer))
            if _number(step, "hasdep", here):
                signals.append((number, at))
        blocks.append(block)
    for number, block in enumerate(blocks):
        for at, entry in enumerate(block.entries):
            if entry.waits_for is None:
                continue
            other, index = entry.waits_for
            exists = 0 <= other < len(blocks) and other != number
            if not exists or not 0 <= index < len(blocks[other].entries):
                message = (
                    f"gpu {rank}, tb {number}, step {at} waits for step {index} of tb "
                    f"{other}, which is not there"
                )
                raise ScheduleError(message)
            if entry.waits_for not in signals:
                message = (
                    f"gpu {rank}, tb {other}, step {index}: hasdep must be 1, since "
                    f"tb {number} waits for it"
                )
                raise ScheduleError(message)
    return blocks


def _entry(
    element: ET.Element, block: Block, at: int, where: str, buffer: str
) -> Entry:
    if _number(element, "s", where) != at:
        message = f"{where}: steps must be 0, 1, 2 and so on"
        raise ScheduleError(message)
    depends = _number(element, "depid", where), _number(element, "deps", where)
    waits_for = None if depends == (-1, -1) else depends
    name = _word(element, "type", where)
    if name == NOP:
        return Entry(None, waits_for)
    if name not in _KINDS:
        known = ", ".join([*_KINDS, NOP])
        message = f"{where}: type={name!r} is not read here; known are {known}"
        raise ScheduleError(message)
    kind = _KINDS[name]
    source, target = (_number(element, n, where) for n in ("srcoff", "dstoff"))
    if source != target or _number(element, "cnt", where) != 1:
        message = f"{where}: only single chunks that stay in their place are read"
        raise ScheduleError(message)
    for side in ("srcbuf", "dstbuf"):
        if _word(element, side, where) != buffer:
            message = f"{where}: {side} must be {buffer!r}, got {element.get(side)!r}"
            raise ScheduleError(message)
    peer = block.send if kind == Kind.SEND else block.receive
    if peer < 0:
        message = f"{where}: its thread block has no peer for type={name!r}"
        raise ScheduleError(message)
    return Entry(Step(kind, peer, source), waits_for)


def _program(rank: int, blocks: Sequence[Block]) -> list[Step]:
    """Returns the steps of a GPU in an order that its blocks allow.

    Raises:
        ScheduleError: They wait for each other, or two steps on one chunk, of which one
            writes it, may happen in either order.
    """
    needs: dict[_Node, list[_Node]] = {}
    for b, block in enumerate(blocks):
        for at, entry in enumerate(block.entries):
            needs[b, at] = [(b, at - 1)] if at else []
            if entry.waits_for is not None:
                needs[b, at].append(entry.waits_for)
    # Those that may begin come in the order of their blocks.
    sorter: TopologicalSorter[_Node] = TopologicalSorter(dict.fromkeys(needs, ()))
    for node, earlier in needs.items():
        sorter.add(node, *earlier)
    try:
        order = list(sorter.static_order())
    except CycleError:
        message = f"gpu {rank}: its thread blocks wait for each other"
        raise ScheduleError(message) from None
    _require_order(rank, blocks, order, needs)
    steps = (blocks[b].entries[at].step for b, at in order)
    return [step for step in steps if step is not None]


def _require_order(
    rank: int,
    blocks: Sequence[Block],
    order: Sequence[_Node],
    needs: dict[_Node, list[_Node]],
) -> None:
    place = {node: i for i, node in enumerate(order)}
    # One bit for each step that surely comes before.
    before = [0] * len(order)
    for i, node in enumerate(order):
        for j in (place[need] for need in needs[node]):
            before[i] |= before[j] | 1 << j
    for chunk, places in _by_chunk(blocks, order):
        for number, i in enumerate(places):
            for j in places[:number]:
                one, other = (blocks[order[k][0]].entries[order[k][1]] for k in (j, i))
                assert one.step is not None
                assert other.step is not None
                reads = one.step.kind == other.step.kind == Kind.SEND
                if not reads and not before[i] >> j & 1:
                    message = (
                        f"gpu {rank}: step {order[j][1]} of tb {order[j][0]} and step "
                        f"{order[i][1]} of tb {order[i][0]} use chunk {chunk} in no "
                        "order: a dependency is missing"
                    )
                    raise ScheduleError(message)


def _by_chunk(
    blocks: Sequence[Block], order: Sequence[_Node]
) -> Iterator[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for i, (b, at) in enumerate(order):
        step = blocks[b].entries[at].step
        if step is not None:
            found.setdefault(step.chunk, []).append(i)
    yield from found.items()


def _owners(
    collective: str, programs: Sequence[Sequence[Step]], num_chunks: int
) -> list[int]:
    if collective in ("all_gather", "reduce_scatter"):
        part = max(1, num_chunks // len(programs))
        return [min(chunk // part, len(programs) - 1) for chunk in range(num_chunks)]
    # Who passes a chunk on and never receives it whole had it first, or finished it.
    receives = {
        (rank, step.chunk)
        for rank, program in enumerate(programs)
        for step in program
        if step.kind == Kind.RECEIVE
    }
    return [
        next((r for r in range(len(programs)) if (r, chunk) not in receives), 0)
        for chunk in range(num_chunks)
    ]


def _with_finish(rank: int, program: list[Step], owners: Sequence[int]) -> list[Step]:
    """Returns a program in which a rank finishes each chunk of its own.

    That is after its last addition to it.
    """
    last: dict[int, int] = {c: -1 for c, o in enumerate(owners) if o == rank}
    for at, (kind, _, chunk) in enumerate(program):
        if kind == Kind.REDUCE and chunk in last:
            last[chunk] = at
    found: list[Step] = []
    for at, step in enumerate(program):
        found.append(step)
        if last.get(step.chunk) == at:
            found.append(Step(Kind.FINISH, -1, step.chunk))
    return found


def _word(element: ET.Element, name: str, where: str) -> str:
    value = element.get(name)
    if value is None:
        message = f"{where}: the attribute {name} is missing"
        raise ScheduleError(message)
    return value


def _number(element: ET.Element, name: str, where: str) -> int:
    value = _word(element, name, where)
    if not _NUMBER.fullmatch(value):
        message = f"{where}: {name} must be a whole number, got {value!r}"
        raise ScheduleError(message)
    return int(value)
