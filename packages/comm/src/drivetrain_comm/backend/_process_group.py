"""Process group whose all-reduces on the CPU run on the native engine."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

# The world that is there when it is imported would stay alive in its default arguments.
import torch.distributed.nn
from torch._compile import _disable_dynamo
from torch.autograd import profiler
from torch.distributed.distributed_c10d import PrefixStore

from drivetrain_comm._settings import settings_from
from drivetrain_comm.backend._probe import agree_on_most, measure
from drivetrain_comm.backend._torch_backend import Ending
from drivetrain_comm.backend._transport import OPERATIONS, Transport, is_supported
from drivetrain_comm.backend._work import EngineWork, LaterTicket, Notifier
from drivetrain_comm.compiler import load_schedule
from drivetrain_comm.selection._choice import SCHEDULE, STOCK, Choice
from drivetrain_comm.selection._load import load_of
from drivetrain_comm.selection._select import cheapest, guess, load_of_algorithm
from drivetrain_core import DistributedError
from drivetrain_core.services import TorchProcessGroupFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from torch._C._distributed_c10d import Work
    from torch.distributed.distributed_c10d import Store

    from drivetrain_comm._settings import Settings
    from drivetrain_comm.backend._extension import Ticket
    from drivetrain_comm.backend._torch_backend import TorchTicket
    from drivetrain_comm.backend._work import AnyTicket
    from drivetrain_comm.compiler import Schedule
    from drivetrain_comm.selection._cost import Network
    from drivetrain_comm.selection._load import Load

logger = logging.getLogger(__name__)

_LAST_TURN_S = 0.01


class TunedProcessGroup(dist.ProcessGroup):
    """A process group over torch's own backends.

    What it does not improve goes to them as it is: CUDA tensors, sparse and complex
    ones, all collectives but all-reduce. Like theirs, its methods are called from one
    thread at a time, in the same order on all ranks.

    Args:
        inner: A group of torch's backends, of the same ranks.
        store: Where the ranks meet, with a prefix of the group's own.
        timeout: How long ranks wait for each other.
        settings: What the user has fixed.
    """

    def __init__(
        self,
        inner: dist.ProcessGroup,
        store: Store,
        timeout: timedelta,
        settings: Settings,
    ) -> None:
        """Leaves the store alone until the first all-reduce."""
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.inner = inner
        self.settings = settings
        self._timeout = timeout
        self._store = store
        self._transport: Transport | None = None
        self._later: deque[LaterTicket] = deque()
        self._meeting: threading.Thread | None = None
        self._more: weakref.WeakSet[Transport] = weakref.WeakSet()
        self._num_more = self._num_reduced = 0
        self._lock = threading.Lock()
        self._network: Network | None = None
        self._loads: dict[str, Load] = {}
        self._choices: dict[int, Choice] = {}
        self._begun: list[EngineWork] = []
        self.notifier = Notifier()
        for device in inner._device_types:
            backend: Any = inner._get_backend(device)
            kinds = dist.ProcessGroup.BackendType
            kind = getattr(kinds, backend.name().upper(), kinds.CUSTOM)
            self._register_backend(device, kind, backend)
            self._set_default_backend(kind)
        closing = weakref.finalize(self, self.notifier.close)
        closing.atexit = False

    @property
    def transport(self) -> Transport:
        """The engine's side of this group; the first use waits for all ranks."""
        is_open = self._transport is not None and not self._later
        if not is_open and threading.current_thread() is not self._meeting:
            # Behind what was begun before.
            nothing = Ending()
            nothing.end()
            self._in_order(lambda: nothing).finish()
        assert self._transport is not None
        return self._transport

    def _in_order(self, begin: Callable[[], Ticket | Ending]) -> AnyTicket:
        """Begins a collective, behind those that wait until the ranks have met."""
        with self._lock:
            if self._transport is not None and not self._later:
                return begin()
            later = LaterTicket(begin)
            self._later.append(later)
            if len(self._later) == 1:
                self._meeting = threading.Thread(
                    target=self._meet, name="drivetrain-comm-meeting", daemon=True
                )
                self._meeting.start()
            return later

    def _meet(self) -> None:
        try:
            self._transport = self._transport or self._open(self._store)
        except Exception as error:  # noqa: BLE001
            # Those that wait get it.
            with self._lock:
                failed, self._later = self._later, deque()
            for later in failed:
                later.fail(error)
            return
        while self._later:
            self._later[0].begin()
            with self._lock:
                self._later.popleft()

    def tell(self, text: str) -> str:
        """Returns what rank 0 says; all ranks must call it, the others with anything."""
        return self.transport.tell(text, self._timeout)

    def open_transport(self) -> Transport:
        """Returns one more transport of the same ranks, whose order is its own.

        All ranks must call it at the same time. It ends with this group.
        """
        self._num_more += 1
        transport = self._open(PrefixStore(f"more/{self._num_more}", self._store))
        self._more.add(transport)
        return transport

    def _open(self, store: Store) -> Transport:
        schedule = None
        said = str(self.settings)
        if self.settings.schedule is not None:
            whole = load_schedule(self.settings.schedule)
            # Ranks may have the file in different places.
            said = f"{replace(self.settings, schedule=None)}, schedule {whole.digest}"
            schedule = whole if whole.num_ranks == self.size() else None
            self._tell_of_schedule(whole, schedule)
        return Transport(
            store,
            self.rank(),
            self.size(),
            self._timeout,
            settings=said,
            buffer_bytes=self.settings.socket_buffer_kb << 10,
            schedule=schedule,
        )

    def _tell_of_schedule(self, whole: Schedule, used: Schedule | None) -> None:
        if self.rank() != 0:
            return
        path = self.settings.schedule
        if used is not None:
            logger.info("all-reduces of %d ranks go by %s", self.size(), path)
        else:
            text = "%s is for %d ranks, and this group has %d: it chooses by itself"
            logger.warning(text, path, whole.num_ranks, self.size())

    @property
    def timeout_s(self) -> float:
        """How long a collective may take, in seconds."""
        return self._timeout.total_seconds()

    @property
    def network(self) -> Network:
        """What was measured last; `measure_network` must have been called."""
        if self._network is None:
            message = "the network of this group was not measured yet"
            raise DistributedError(message)
        return self._network

    @property
    def loads(self) -> dict[str, Load]:
        """What each algorithm of the engine that may be chosen asks of the network."""
        if not self._loads:
            schedule, hosts = self.transport.schedule, self.transport.hosts
            if schedule is not None:
                load = load_of(schedule.programs, schedule.num_chunks, hosts)
                self._loads = {SCHEDULE: load}
                return self._loads
            fixed = self.settings.algorithm
            # One that is fixed may be no better here than another, and works all the same.
            names = [fixed] if fixed else self.transport.algorithms
            self._loads = {
                name: load_of_algorithm(name, hosts) for name in names if name != STOCK
            }
        return self._loads

    def measure_network(self) -> None:
        """Measures the network; all ranks must call it at the same time.

        Raises:
            DistributedError: A rank has failed.
        """
        self._network = measure(self.transport, self.timeout_s)
        self._choices.clear()

    def agree_on_most(self, values: Sequence[float]) -> list[float]:
        """Returns the largest of each value over all ranks, which all must call.

        Raises:
            DistributedError: A rank has failed.
        """
        return agree_on_most(self.transport, values, self.timeout_s)

    def choose(self, size_bytes: int) -> Choice:
        """Returns how a vector of this size is reduced; the same on all ranks."""
        # One choice for sizes alike, so that few are made.
        step = size_bytes.bit_length()
        if step not in self._choices:
            self._choices[step] = self._make_choice(1 << step)
        return self._choices[step]

    def _make_choice(self, size_bytes: int) -> Choice:
        settings = self.settings
        if self.transport.schedule is not None:
            return Choice(algorithm=SCHEDULE, num_streams=settings.streams or 1)
        if settings.algorithm is not None:
            streams = settings.streams or 1
            return Choice(algorithm=settings.algorithm, num_streams=streams)
        if self._network is None:
            return guess(self.transport.hosts, size_bytes, settings.streams or 1)
        return cheapest(self.loads, self._network, size_bytes, settings.streams)

    def reduce_pieces(
        self, tensors: Sequence[torch.Tensor], operation: str, choice: Choice
    ) -> Ticket | TorchTicket:
        """Begins to reduce tensors in place as one vector, on the engine.

        Returns:
            The ticket of the engine.

        Raises:
            DistributedError: The engine does not reduce such tensors so.
        """
        return self.transport.all_reduce(tensors, operation, choice, self.timeout_s)

    # DDP's reducer calls a group from C++, within what torch.compile may be looking at.
    @_disable_dynamo
    def allreduce(
        self,
        tensors: Sequence[torch.Tensor] | torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduces a tensor in place, as torch's backends do."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        options = _options(opts, timeout)
        # Of several, torch's backends make one sum, of all tensors of all ranks.
        if len(tensors) == 1 and self._takes(tensors, options.reduceOp):
            return self._reduce(tensors, options)
        return self.inner.allreduce(list(tensors), options)

    def _takes(self, tensors: Sequence[torch.Tensor], reduce_op: Any) -> bool:
        name, kinds = _name_of(reduce_op), {tensor.dtype for tensor in tensors}
        fits = len(kinds) == 1 and all(_fits(tensor, name) for tensor in tensors)
        # What is empty waits for nobody, who may be gone then: so it is with Gloo.
        fits = fits and any(tensor.numel() for tensor in tensors)
        return fits and self.size() > 1 and self.settings.algorithm != STOCK

    def _reduce(self, tensors: Sequence[torch.Tensor], options: Any) -> Work:
        self._num_reduced += 1
        operation = _name_of(options.reduceOp)
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        seconds = options.timeout.total_seconds()
        seconds = seconds if seconds > 0 else self.timeout_s
        vector, copy_back = _contiguous(tensors)

        def begin() -> Ticket | TorchTicket:
            choice = self.choose(size_bytes)
            return self.transport.all_reduce(vector, operation, choice, seconds)

        ticket = self._in_order(begin)
        work = EngineWork(ticket, list(tensors), self.notifier, last=copy_back)
        if copy_back is not None or profiler._is_profiler_enabled:
            # Nobody need wait for it.
            is_gloos = self._transport is not None and self._transport.lacks
            work.get_future("" if is_gloos else self.name())
        self._begun = [one for one in self._begun if not one.is_completed()] + [work]
        return work

    @_disable_dynamo
    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        """Waits for all ranks and, as Gloo does, for what this one has begun before."""
        work = self.inner.barrier(*args, **kwargs)
        begun = [one.get_future() for one in self._begun if not one.is_completed()]
        if not begun:
            return work
        ticket = Ending()

        def end(done: Any) -> None:
            try:
                torch.futures.wait_all(done.value())
                ticket.end()
            except Exception as error:  # noqa: BLE001
                # Whoever waits gets it.
                ticket.end(repr(error))

        both = torch.futures.collect_all([*begun, work.get_future()])
        both.add_done_callback(end)
        return EngineWork(ticket, [], self.notifier)

    @_disable_dynamo
    def allreduce_coalesced(
        self, tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Reduces tensors in place, as if they were one."""
        options = opts or dist.AllreduceCoalescedOptions()
        if self._takes(tensors, options.reduceOp):
            return self._reduce(tensors, _options(options, None))
        return self.inner.allreduce_coalesced(list(tensors), options)

    def _get_sequence_number_for_group(self) -> Any:
        """Returns how many collectives were begun: tools compare it between ranks."""
        inner: Any = self.inner
        return inner._get_sequence_number_for_group() + self._num_reduced

    def _transports(self) -> list[Transport]:
        return [one for one in (self._transport, *self._more) if one is not None]

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long a collective may take."""
        self._timeout = timeout
        self.inner.set_timeout(timeout)

    def abort(self) -> None:
        """Ends all collectives with an error, on all ranks."""
        for transport in self._transports():
            transport.fail(f"rank {self.rank()}: the process group was aborted")
        self.inner.abort()

    def shutdown(self) -> None:
        """Leaves the group, once what was begun has ended: so does Gloo."""
        while self._begun:
            # Whoever waits for it is told.
            with suppress(Exception):
                self._begun.pop().wait()
        for transport in self._transports():
            transport.close()
        self.inner.shutdown()
        # Soon the group is freed, with the GIL held, and waits for its threads: lets
        # those that have yet to free a tensor have the GIL first.
        time.sleep(_LAST_TURN_S)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """Returns how torch calls the backend below."""
        return self.inner.name()

    name = getBackendName

    def __repr__(self) -> str:
        """For people: who meets, and who reduces."""
        who = f"rank {self.rank()} of {self.size()}, {self.name()} below"
        if self._transport is None:
            return f"TunedProcessGroup({who}, no all-reduce yet)"
        engine = self._transport.lacks or f"hosts {self._transport.hosts}"
        return f"TunedProcessGroup({who}, {engine})"


def _forward(name: str) -> Any:
    def method(self: TunedProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = "Is left to torch's backend."
    return _disable_dynamo(method)


# Not inherited: for a class in Python, torch calls the inherited form with the GIL held,
# while threads of Gloo that hold its lock may wait for the GIL to free a tensor.
_FORWARDED = (
    *("_allgather_base", "_reduce_scatter_base", "all_gather_single"),
    *("all_gather_single_coalesced", "all_to_all_single", "allgather"),
    *("allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall"),
    *("alltoall_base", "broadcast", "gather", "monitored_barrier", "recv"),
    *("recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter"),
    *("send",),
)
for _name in _FORWARDED:
    if hasattr(dist.ProcessGroup, _name):
        setattr(TunedProcessGroup, _name, _forward(_name))


class TunedProcessGroupFactory:
    """Makes tuned process groups: core's `process_group` service.

    Args:
        backend: Of torch, for what is not improved; see
            `drivetrain_core.services.TorchProcessGroupFactory`.
        settings: What is fixed instead of measured; by default what the environment
            says.

    Raises:
        DistributedError: There is no such backend, or the environment is wrong.

    Example:
        >>> from datetime import timedelta
        >>> group = TunedProcessGroupFactory("gloo")(
        ...     dist.HashStore(), 0, 1, timedelta(seconds=30))
        >>> group.size(), group.name()
        (1, 'gloo')
    """

    def __init__(
        self, backend: str | None = None, *, settings: Settings | None = None
    ) -> None:
        """Checks the backend and the settings."""
        self._inner = TorchProcessGroupFactory(backend)
        self.settings = settings_from() if settings is None else settings

    def __call__(
        self, store: Store, rank: int, world_size: int, timeout: timedelta
    ) -> TunedProcessGroup:
        """Returns a process group, as core's `ProcessGroupFactory` says."""
        inner = self._inner(PrefixStore("torch", store), rank, world_size, timeout)
        own = PrefixStore("drivetrain_comm", store)
        return TunedProcessGroup(inner, own, timeout, self.settings)


def _options(opts: Any, timeout: timedelta | None) -> Any:
    """Returns all-reduce options, whichever of torch's signatures was used."""
    if isinstance(opts, dist.AllreduceOptions):
        return opts
    options = dist.AllreduceOptions()
    # Those of coalesced calls are a class of their own.
    operation = getattr(opts, "reduceOp", opts)
    if operation is not None:
        options.reduceOp = operation
    if timeout is not None:
        options.timeout = timeout
    return options


def _name_of(operation: Any) -> str:
    names = (*OPERATIONS, "AVG")
    return next((n for n in names if operation == getattr(dist.ReduceOp, n)), "other")


def _fits(tensor: torch.Tensor, operation: str) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and is_supported(tensor.dtype, operation)
    )


def _contiguous(
    tensors: Sequence[torch.Tensor],
) -> tuple[Sequence[torch.Tensor], Callable[[], None] | None]:
    """Returns tensors whose elements lie side by side, and what copies them back."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return tensors, None
    copies = [tensor.contiguous() for tensor in tensors]

    def copy_back() -> None:
        # Parameters and tensors of inference are changed in place all the same.
        with torch.inference_mode():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)

    return copies, copy_back
