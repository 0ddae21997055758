"""A schedule: what every rank does in a collective, on chunks of one vector."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_core.strict_json import unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""The collectives that schedules are made for."""

_HEADER = "drivetrain_schedule"
_VERSION = 1
_FIELDS = ("name", "collective", "owners", "programs")
_NUMBER = re.compile(r"-1|0|[1-9][0-9]{0,8}")


class Transfer(NamedTuple):
    """A chunk goes from one rank to another.

    In a reduction each rank has its own value of every chunk at first. Values are added
    up on the way to the chunk's owner, which finishes it (an average divides it then),
    and copies of the result go out from there.

    Attributes:
        source: The rank that sends.
        target: The rank that receives.
        chunk: Which chunk.
        reduces: Whether it is added to the target's own, rather than put in its place.
    """

    source: int
    target: int
    chunk: int
    reduces: bool = False


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The programs of all ranks. Whether they are right, `find_fault` says.

    Args:
        name: How it was made.
        collective: One of `COLLECTIVES`.
        owners: For each chunk of the vector the rank that has it at first (all_gather,
            broadcast), has it at the end (reduce_scatter), or finishes its reduction
            (all_reduce).
        programs: The steps of each rank.

    Raises:
        ScheduleError: There is no such collective, no chunk, fewer than two ranks, or
            a step names a rank or a chunk that there is not.
    """

    name: str
    collective: str
    owners: tuple[int, ...]
    programs: tuple[tuple[Step, ...], ...]

    def __post_init__(self) -> None:
        """Checks names and numbers."""
        if self.collective not in COLLECTIVES:
            message = (
                f"{self.name}: no collective {self.collective!r}: there are "
                f"{', '.join(COLLECTIVES)}"
            )
            raise ScheduleError(message)
        if self.num_ranks < 2 or not self.owners:
            message = (
                f"{self.name}: two ranks and one chunk are needed at least, got "
                f"{self.num_ranks} and {self.num_chunks}"
            )
            raise ScheduleError(message)
        wrong = [owner for owner in self.owners if not 0 <= owner < self.num_ranks]
        if wrong:
            message = f"{self.name}: there is no rank {wrong[0]} to own a chunk"
            raise ScheduleError(message)
        for rank, program in enumerate(self.programs):
            for at, step in enumerate(program):
                self._check_step(rank, at, step)

    @classmethod
    def of(
        cls,
        name: str,
        collective: str,
        owners: Iterable[int],
        programs: Iterable[Iterable[Step]],
    ) -> Schedule:
        """Returns the schedule of such programs, whatever sequences they are."""
        return cls(
            name=name,
            collective=collective,
            owners=tuple(owners),
            programs=tuple(tuple(program) for program in programs),
        )

    @property
    def num_ranks(self) -> int:
        """How many ranks take part."""
        return len(self.programs)

    @property
    def num_chunks(self) -> int:
        """Into how many chunks the vector is cut."""
        return len(self.owners)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ for different programs."""
        content = f"{self.collective} {self.owners} {self.programs}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Returns the schedule as JSON, of which `from_json` makes it again.

        Example:
            >>> schedule = schedule_of("pair", "broadcast", 2, [0], [Transfer(0, 1, 0)])
            >>> Schedule.from_json(schedule.to_json()) == schedule
            True
        """
        content = {
            _HEADER: _VERSION,
            "name": self.name,
            "collective": self.collective,
            "owners": list(self.owners),
            "programs": [
                [f"{step.kind.name.lower()} {step.peer} {step.chunk}" for step in p]
                for p in self.programs
            ],
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Returns the schedule of a file.

        Raises:
            ScheduleError: The text is no schedule; the message says where.
        """
        try:
            content = json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            message = (
                f"a schedule is JSON, as compile --out NAME.json writes it: {error}"
            )
            raise ScheduleError(message) from error
        version = content.get(_HEADER) if isinstance(content, dict) else None
        if type(version) is not int or version != _VERSION:
            message = f"a schedule is an object with {_HEADER} = {_VERSION}"
            raise ScheduleError(message)
        others = sorted(set(content) - {_HEADER, *_FIELDS})
        if others:
            message = f"a schedule has no field {others[0]!r}: {', '.join(_FIELDS)}"
            raise ScheduleError(message)
        name = _member(content, "name", str)
        owners = _member(content, "owners", list)
        if not all(type(owner) is int for owner in owners):
            message = f"owners must be ranks, got {owners}"
            raise ScheduleError(message)
        return cls.of(
            name,
            _member(content, "collective", str),
            owners,
            (
                [_step(rank, at, line) for at, line in enumerate(_lines(rank, p))]
                for rank, p in enumerate(_member(content, "programs", list))
            ),
        )

    def _check_step(self, rank: int, at: int, step: Step) -> None:
        kind, peer, chunk = step
        is_right = 0 <= peer < self.num_ranks and peer != rank
        if kind == Kind.FINISH:
            is_right = peer == -1
        if not is_right or not 0 <= chunk < self.num_chunks:
            message = (
                f"{self.name}: step {at} of rank {rank} is {kind.name.lower()} {peer} "
                f"{chunk}, but there are {self.num_ranks} ranks and {self.num_chunks} "
                "chunks"
            )
            raise ScheduleError(message)


def schedule_of(
    name: str,
    collective: str,
    num_ranks: int,
    owners: Sequence[int],
    transfers: Iterable[Transfer],
) -> Schedule:
    """Returns the programs that carry out transfers in their order.

    Args:
        name: How it was made.
        collective: One of `COLLECTIVES`.
        num_ranks: How many ranks there are.
        owners: See `Schedule`.
        transfers: In an order in which one could follow the other.

    Raises:
        ScheduleError: A transfer names a rank or a chunk that there is not.

    Example:
        >>> pair = schedule_of("by hand", "all_reduce", 2, [0], [
        ...     Transfer(1, 0, 0, reduces=True),  # into the owner, rank 0
        ...     Transfer(0, 1, 0)])               # and the result back
        >>> [step.kind.name for step in pair.programs[0]]
        ['REDUCE', 'FINISH', 'SEND']
    """
    transfers = [Transfer(*one) for one in transfers]
    for at, (source, target, chunk, _) in enumerate(transfers):
        ranks = range(num_ranks)
        is_way = source in ranks and target in ranks and source != target
        if not is_way or chunk not in range(len(owners)):
            message = (
                f"{name}: transfer {at} is of chunk {chunk} from rank {source} to rank "
                f"{target}; ranks are 0 to {num_ranks - 1}, source and target differ, "
                f"and chunks are 0 to {len(owners) - 1}"
            )
            raise ScheduleError(message)
    programs: list[list[Step]] = [[] for _ in range(num_ranks)]
    reduces = collective in ("all_reduce", "reduce_scatter")
    left = set(range(len(owners))) if reduces else set()
    for source, target, chunk, adds in transfers:
        if chunk in left and source == owners[chunk]:
            # What its owner sends on is reduced.
            left.remove(chunk)
            programs[source].append(Step(Kind.FINISH, -1, chunk))
        programs[source].append(Step(Kind.SEND, target, chunk))
        kind = Kind.REDUCE if adds else Kind.RECEIVE
        programs[target].append(Step(kind, source, chunk))
    for chunk in sorted(left):
        programs[owners[chunk]].append(Step(Kind.FINISH, -1, chunk))
    return Schedule.of(name, collective, owners, programs)


def _member(content: dict[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        message = f"{name} of a schedule must be a {kind.__name__}, got {value!r}"
        raise ScheduleError(message)
    return value


def _lines(rank: int, program: Any) -> list[Any]:
    if not isinstance(program, list):
        message = f"the program of rank {rank} must be a list, got {program!r}"
        raise ScheduleError(message)
    return program


def _step(rank: int, at: int, line: Any) -> Step:
    words = line.split() if isinstance(line, str) else []
    kinds = {kind.name.lower(): kind for kind in Kind}
    if (
        len(words) == 3
        and words[0] in kinds
        and all(_NUMBER.fullmatch(word) for word in words[1:])
    ):
        return Step(kinds[words[0]], int(words[1]), int(words[2]))
    message = (
        f"step {at} of rank {rank} must be '{' | '.join(kinds)}', a peer and a chunk, "
        f"got {line!r}"
    )
    raise ScheduleError(message)
