"""Transport: all-reduces of one group on the native engine."""

from __future__ import annotations

import logging
import socket
import threading
import weakref
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from drivetrain_comm._version import __version__
from drivetrain_comm.backend import _native
from drivetrain_comm.backend._address import find_address, host_identity
from drivetrain_comm.backend._rendezvous import PROTOCOL, Member, rendezvous
from drivetrain_comm.backend._torch_backend import TorchTicket
from drivetrain_comm.selection._choice import SCHEDULE, STOCK, available, steps_of
from drivetrain_core import DistributedError
from drivetrain_core.native_library import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch.distributed.distributed_c10d import Store

    from drivetrain_comm.algorithms._steps import Step
    from drivetrain_comm.backend._extension import Program, Ticket
    from drivetrain_comm.compiler import Schedule
    from drivetrain_comm.selection._choice import Choice

logger = logging.getLogger(__name__)

# In the order of the native enumerations.
_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TYPES = {dtype: number for number, dtype in enumerate((*_INTEGERS, *_FLOATS))}
_OF_INTEGERS = ("BAND", "BOR", "BXOR")
_NAMES = ("SUM", "PRODUCT", "MIN", "MAX", *_OF_INTEGERS)
OPERATIONS = {name: number for number, name in enumerate(_NAMES)}


def is_supported(dtype: torch.dtype, operation: str) -> bool:
    """Returns whether the engine reduces this dtype by this operation.

    Example:
        >>> is_supported(torch.bfloat16, "SUM"), is_supported(torch.complex64, "SUM")
        (True, False)
    """
    if dtype not in _TYPES:
        return False
    if operation == "AVG":
        return dtype.is_floating_point
    if operation in _OF_INTEGERS:
        return not dtype.is_floating_point
    return operation in OPERATIONS


class Transport:
    """Carries out the all-reduces of a group.

    All ranks make one at the same time, and call it in the same order.

    Args:
        store: Where the ranks meet, with a prefix of the group's own.
        rank: This one.
        world_size: The number of ranks.
        timeout: How long ranks wait for each other when they meet.
        settings: What must be the same on all ranks.
        buffer_bytes: Of each socket; 0 leaves it to the kernel.
        schedule: An all-reduce for as many ranks, which is right; the same on all.

    Attributes:
        schedule: Likewise.
        hosts: The ranks of each host.
        hostnames: What the host of each rank is called.
        lacks: Why there is no engine on all ranks, or None.

    Raises:
        DistributedError: Ranks contradict each other, or do not come in time.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        timeout: timedelta,
        *,
        settings: str = "",
        buffer_bytes: int = 0,
        schedule: Schedule | None = None,
    ) -> None:
        """Meets the other ranks."""
        self.rank, self.world_size = rank, world_size
        self.schedule = schedule
        lacks = _native.missing_because()
        engine = None if lacks else _native.engine(find_address(store))
        mine = Member(
            version=__version__,
            protocol=PROTOCOL,
            identity=host_identity(),
            hostname=socket.gethostname(),
            host=engine.host if engine else "",
            port=engine.port if engine else 0,
            local_name=engine.local_name if engine else "",
            settings=settings,
            lacks=lacks,
        )
        ranks = rendezvous(store, rank, world_size, mine, timeout)
        self.hosts = ranks.hosts
        self.hostnames = ranks.hostnames
        self._store = store
        self._num_told = 0
        self._kept: list[tuple[Ticket, Sequence[torch.Tensor]]] = []
        self._lock = threading.Lock()
        without = [r for r, member in enumerate(ranks.members) if member.lacks]
        self.lacks = (
            f"rank {without[0]}: {ranks.members[without[0]].lacks}" if without else None
        )
        self.algorithms = (STOCK,) if self.lacks else available(self.hosts)
        self._programs: dict[str, tuple[Program, int]] = {}
        if engine is None or self.lacks:
            logger.warning("collectives stay with torch: %s", self.lacks)
            # Of its own, since all-reduces may begin later than what is called after them.
            # Gloo waits in the store, which serves one call at a time on a connection.
            with suppress(RuntimeError, NotImplementedError):
                store = store.clone()  # type: ignore[attr-defined]
            place = PrefixStore("torch", store)
            self._stock: Any = dist.ProcessGroupGloo(place, rank, world_size, timeout)
            return
        self._engine = engine
        self._group = engine.add_group(ranks.token, rank, world_size, buffer_bytes)
        for peer, member in enumerate(ranks.members):
            if peer != rank:
                shares = member.identity == mine.identity
                local_name = member.local_name if shares else ""
                engine.set_address(
                    self._group, peer, member.host, member.port, local_name
                )
        # What the group still uses lives until it is gone.
        self._close = weakref.finalize(self, _leave, engine, self._group, self._kept)
        # The engine stops at exit, and its groups with it.
        self._close.atexit = False

    def all_reduce(
        self,
        tensors: Sequence[torch.Tensor],
        operation: str,
        choice: Choice,
        timeout_s: float,
    ) -> Ticket | TorchTicket:
        """Begins to reduce tensors in place, as if they were one vector.

        Args:
            tensors: Contiguous ones on the CPU, all of one dtype; none may be changed
                before the ticket's end.
            operation: `SUM`, `AVG`, `PRODUCT`, `MIN`, `MAX`, `BAND`, `BOR` or `BXOR`.
            choice: How; the same on all ranks.
            timeout_s: After how many seconds the group fails.

        Raises:
            DistributedError: The engine does not reduce such tensors so, or memory is
                exhausted.
        """
        if self.lacks:
            return TorchTicket(self._stock, tensors, operation)
        program, plan = self._program(choice)
        rest = choice.num_streams, choice.segment_bytes, timeout_s
        return self.run(program, plan, tensors, operation, *rest)

    def run(
        self,
        program: Program,
        plan: int,
        tensors: Sequence[torch.Tensor],
        operation: str,
        num_streams: int,
        segment_bytes: int,
        timeout_s: float,
    ) -> Ticket:
        """Begins to carry out any steps; `all_reduce` says the rest.

        Args:
            program: The steps of this rank.
            plan: A digest of the steps of all; the same on all ranks.
            tensors: The vector.
            operation: What REDUCE does.
            num_streams: Connections to each peer.
            segment_bytes: How much travels at once.
            timeout_s: After how many seconds the group fails.
        """
        dtype = tensors[0].dtype
        if others := {tensor.dtype for tensor in tensors} - {dtype}:
            message = f"one collective takes one dtype, got {dtype} and {others.pop()}"
            raise TypeError(message)
        if not is_supported(dtype, operation):
            message = f"{operation} of {dtype} is not reduced here; use torch's backend"
            raise DistributedError(message)
        factor = 1.0
        if operation == "AVG":
            operation, factor = "SUM", 1 / self.world_size
            if dtype.itemsize == 2:
                # A sum of many could be more than sixteen bits can say.
                with torch.no_grad():
                    torch._foreach_mul_(list(tensors), factor)
                factor = 1.0
        pieces = [(address_of(tensor, "a tensor"), tensor.nbytes) for tensor in tensors]
        with self._lock:
            ticket = self._engine.submit(
                self._group,
                program,
                plan,
                pieces,
                type=_TYPES[dtype],
                operation=OPERATIONS[operation],
                factor=factor,
                num_channels=num_streams,
                segment_bytes=segment_bytes,
                timeout_s=timeout_s,
            )
            # Whoever called may let go of them, as after an interrupt.
            self._kept[:] = [one for one in self._kept if one[0].wait(0.0) is None]
            # By their memory, since they may be given another.
            self._kept.append((ticket, [tensor.detach() for tensor in tensors]))
        return ticket

    def tell(self, text: str, timeout: timedelta) -> str:
        """Returns what rank 0 says; all ranks must call it, the others with anything."""
        key = f"told/{self._num_told}"
        self._num_told += 1
        if self.rank == 0:
            self._store.set(key, text)
            return text
        self._store.wait([key], timeout)
        return self._store.get(key).decode()

    def fail(self, why: str) -> None:
        """Ends the group's collectives on all ranks with an error."""
        if not self.lacks:
            self._engine.fail_group(self._group, why)

    def close(self) -> None:
        """Leaves the group; peers that still wait for this rank get an error."""
        if not self.lacks:
            self._close()

    def _program(self, choice: Choice) -> tuple[Program, int]:
        found = self._programs.get(choice.algorithm)
        if found is None:
            steps, num_chunks = self._steps(choice.algorithm)
            program = _native.make_program(steps, num_chunks, self.world_size)
            digest = zlib.crc32(f"{choice.algorithm} {self.hosts}".encode())
            found = self._programs[choice.algorithm] = program, digest
        program, digest = found
        rest = f"{choice.num_streams} {choice.segment_bytes}".encode()
        return program, zlib.crc32(rest, digest)

    def _steps(self, algorithm: str) -> tuple[list[Step], int]:
        if algorithm == SCHEDULE:
            assert self.schedule is not None
            return list(self.schedule.programs[self.rank]), self.schedule.num_chunks
        return steps_of(algorithm, self.hosts, self.rank)


def _leave(engine: _native.Engine, group: int, kept: list[Any]) -> None:
    engine.remove_group(group)
    kept.clear()
