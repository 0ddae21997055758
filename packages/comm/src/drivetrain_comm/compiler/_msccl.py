"""Schedules as MSCCL XML, for GPUs: written, and read back so that they can be proven.

NCCL itself does not read such files: the executor of MSCCL does, a fork of NCCL that
takes its library's place, and RCCL. What is written is for calls in place.

Each thread block has one peer to send to or one to receive from, and works through its
steps in their order. A step may wait for one step of another block; where it has to wait
for more, steps that do nothing come before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from drivetrain_comm._steps import Kind, Step
from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._schedule import Schedule
from drivetrain_comm.compiler._verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["from_msccl", "to_msccl"]

_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
}
_PROTOCOLS = ("LL", "LL128", "Simple")
_TYPES = {Kind.SEND: "s", Kind.RECEIVE: "r", Kind.REDUCE: "rrc"}
_KINDS = {name: kind for kind, name in _TYPES.items()}
_NOP = "nop"
_MOST_BLOCKS = 32  # of a GPU, per channel
_MOST_STEPS = 512  # of a thread block


@dataclass
class _Entry:
    """A step of a thread block.

    Args:
        step: What it does; None for nothing.
        waits_for: The (block, step) that must be done before, or None.
    """

    step: Step | None
    waits_for: tuple[int, int] | None


@dataclass
class _Block:
    """A thread block: whom it sends to, whom it receives from, and its steps."""

    send: int
    receive: int
    entries: list[_Entry] = field(default_factory=list)


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
        >>> from_msccl(to_msccl(pair)).programs == pair.programs
        True
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
        coll=_COLLECTIVES[schedule.collective],
        inplace="1",
        outofplace="0",
        minBytes=str(min_bytes),
        maxBytes=str(max_bytes),
    )
    gathers = schedule.collective == "all_gather"
    part = schedule.num_chunks // schedule.num_ranks
    if schedule.collective in ("all_gather", "reduce_scatter"):
        _require_parts(schedule, part)
    for rank, program in enumerate(schedule.programs):
        inputs, outputs = schedule.num_chunks, 0
        if gathers:
            inputs, outputs = part, schedule.num_chunks
        elif schedule.collective == "reduce_scatter":
            outputs = part
        gpu = ET.SubElement(
            root,
            "gpu",
            id=str(rank),
            i_chunks=str(inputs),
            o_chunks=str(outputs),
            s_chunks="0",
        )
        _write_blocks(gpu, rank, _blocks(program), "o" if gathers else "i")
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


def _blocks(program: Sequence[Step]) -> list[_Block]:
    blocks: list[_Block] = []
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
            blocks.append(_Block(peer if sends else -1, -1 if sends else peer))
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
        entries += [_Entry(None, wait) for wait in waits[:-1]]
        entries.append(_Entry(step, waits[-1] if waits else None))
        place = at, len(entries) - 1
        if sends:
            read.setdefault(chunk, []).append(place)
        else:
            written[chunk] = place
    return blocks


def _write_blocks(
    gpu: ET.Element, rank: int, blocks: Sequence[_Block], buffer: str
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
                type=_TYPES[entry.step.kind] if entry.step else _NOP,
                srcbuf=buffer,
                srcoff=chunk,
                dstbuf=buffer,
                dstoff=chunk,
                cnt="1" if entry.step else "0",
                depid=str(depends[0]),
                deps=str(depends[1]),
                hasdep=str(int((number, at) in waited)),
            )


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
    except ET.ParseError as error:
        message = f"an MSCCL algorithm is XML: {error}"
        raise ScheduleError(message) from error
    if root.tag != "algo":
        message = f"an MSCCL algorithm begins with <algo>, got <{root.tag}>"
        raise ScheduleError(message)
    names = {name: ours for ours, name in _COLLECTIVES.items()}
    coll = _word(root, "coll", "<algo>")
    if coll not in names:
        message = f"<algo> has coll={coll!r}; known are {', '.join(names)}"
        raise ScheduleError(message)
    num_ranks, num_chunks = (
        _number(root, name, "<algo>") for name in ("ngpus", "nchunksperloop")
    )
    gpus = {_number(gpu, "id", "<gpu>"): gpu for gpu in root.findall("gpu")}
    if sorted(gpus) != list(range(num_ranks)):
        message = f"<algo> has ngpus={num_ranks}, but its gpus are {sorted(gpus)}"
        raise ScheduleError(message)
    programs = [
        _program(rank, _read_blocks(rank, gpus[rank])) for rank in range(num_ranks)
    ]
    owners = _owners(names[coll], programs, num_chunks)
    if names[coll] in ("all_reduce", "reduce_scatter"):
        programs = [
            _with_finish(rank, program, owners) for rank, program in enumerate(programs)
        ]
    schedule = Schedule(
        name=_word(root, "name", "<algo>"),
        collective=names[coll],
        owners=tuple(owners),
        programs=tuple(tuple(program) for program in programs),
    )
    verify(schedule)
    return schedule


def _read_blocks(rank: int, gpu: ET.Element) -> list[_Block]:
    blocks = []
    for number, element in enumerate(gpu.findall("tb")):
        where = f"gpu {rank}, tb {number}"
        if _number(element, "id", where) != number:
            message = f"{where}: ids must be 0, 1, 2 and so on"
            raise ScheduleError(message)
        block = _Block(_number(element, "send", where), _number(element, "recv", where))
        for at, step in enumerate(element.findall("step")):
            block.entries.append(_entry(step, block, at, f"{where}, step {at}"))
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
    return blocks


def _entry(element: ET.Element, block: _Block, at: int, where: str) -> _Entry:
    if _number(element, "s", where) != at:
        message = f"{where}: steps must be 0, 1, 2 and so on"
        raise ScheduleError(message)
    depends = _number(element, "depid", where), _number(element, "deps", where)
    waits_for = None if depends == (-1, -1) else depends
    name = _word(element, "type", where)
    if name == _NOP:
        return _Entry(None, waits_for)
    if name not in _KINDS:
        known = ", ".join([*_KINDS, _NOP])
        message = f"{where}: type={name!r} is not read here; known are {known}"
        raise ScheduleError(message)
    kind = _KINDS[name]
    source, target = (_number(element, n, where) for n in ("srcoff", "dstoff"))
    if source != target or _number(element, "cnt", where) != 1:
        message = f"{where}: only single chunks that stay in their place are read"
        raise ScheduleError(message)
    peer = block.send if kind == Kind.SEND else block.receive
    if peer < 0:
        message = f"{where}: its thread block has no peer for type={name!r}"
        raise ScheduleError(message)
    return _Entry(Step(kind, peer, source), waits_for)


def _program(rank: int, blocks: Sequence[_Block]) -> list[Step]:
    """Returns the steps of a GPU in an order that its blocks allow.

    Raises:
        ScheduleError: They wait for each other, or two steps on one chunk, of which one
            writes it, may happen in either order.
    """
    after: dict[tuple[int, int], list[tuple[int, int]]] = {}
    num_before = {
        (b, at): 0 for b, block in enumerate(blocks) for at in range(len(block.entries))
    }
    for b, at in num_before:
        needs = [(b, at - 1)] if at else []
        waits_for = blocks[b].entries[at].waits_for
        if waits_for is not None:
            needs.append(waits_for)
        for need in needs:
            after.setdefault(need, []).append((b, at))
            num_before[b, at] += 1
    ready = sorted(node for node, num in num_before.items() if not num)
    order: list[tuple[int, int]] = []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for follower in after.get(node, ()):
            num_before[follower] -= 1
            if not num_before[follower]:
                ready.append(follower)
    if len(order) < len(num_before):
        message = f"gpu {rank}: its thread blocks wait for each other"
        raise ScheduleError(message)
    _require_order(rank, blocks, order, after)
    steps = (blocks[b].entries[at].step for b, at in order)
    return [step for step in steps if step is not None]


def _require_order(
    rank: int,
    blocks: Sequence[_Block],
    order: Sequence[tuple[int, int]],
    after: dict[tuple[int, int], list[tuple[int, int]]],
) -> None:
    place = {node: i for i, node in enumerate(order)}
    # One bit for each step that surely comes before.
    before = [0] * len(order)
    for i, node in enumerate(order):
        for follower in after.get(node, ()):
            before[place[follower]] |= before[i] | 1 << i
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
    blocks: Sequence[_Block], order: Sequence[tuple[int, int]]
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
    try:
        return int(value)
    except ValueError:
        message = f"{where}: {name} must be a whole number, got {value!r}"
        raise ScheduleError(message) from None
