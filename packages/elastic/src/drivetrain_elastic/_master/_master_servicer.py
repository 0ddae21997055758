"""Servicer of the master: carries out the calls of its gRPC service."""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import grpc

from drivetrain_core import DrivetrainError
from drivetrain_elastic._client._master_store import KEPT
from drivetrain_elastic._master._graceful_shutdown import (
    GracefulShutdown,
    MasterEndsError,
)
from drivetrain_elastic._master._node_registry import DuplicateNodeError
from drivetrain_elastic.decisions.shards import (
    DatasetSpec,
    indices_of,
    num_with_indices,
)
from drivetrain_elastic.journal import JournalError
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from drivetrain_elastic._master._datasets import Datasets
    from drivetrain_elastic._master._events import EventLog
    from drivetrain_elastic._master._journal_writer import JournalWriter
    from drivetrain_elastic._master._key_value_store import KeyValueStore
    from drivetrain_elastic._master._node_manager import NodeManager
    from drivetrain_elastic.decisions.shards import DatasetState, Lease

# Of keys that come along, without being asked for.
_MOST_OTHER_BYTES = 1 << 20


def _with_status(method: Any) -> Any:
    """Ends a call with the status of what the caller, or the journal, has done wrong."""

    @functools.wraps(method)
    async def wrapped(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except (DrivetrainError, ValueError) as error:
            await context.abort(_status_of(error), str(error))

    return wrapped


def _status_of(error: Exception) -> grpc.StatusCode:
    if isinstance(error, JournalError | MasterEndsError):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, DuplicateNodeError):
        return grpc.StatusCode.ALREADY_EXISTS
    return grpc.StatusCode.INVALID_ARGUMENT


class MasterServicer:
    """Carries calls out; each method is named after its call.

    Args:
        store: Of keys and values, in which ranks find each other.
        writer: Of the journal, for keys that are kept.
        datasets: What is dealt out.
        events: What happened.
        node_manager: Who is there.
        incarnation: Which master this is.
    """

    def __init__(
        self,
        store: KeyValueStore,
        writer: JournalWriter,
        datasets: Datasets,
        events: EventLog,
        node_manager: NodeManager,
        incarnation: int,
    ) -> None:
        self._store = store
        self._writer = writer
        self._datasets = datasets
        self._events = events
        self._node_manager = node_manager
        self._incarnation = incarnation
        self._began_s = time.monotonic()
        self._shutdown = GracefulShutdown()

    def end(self) -> None:
        """Lets those go who wait for an answer, or for what is to come."""
        self._shutdown.begin()

    async def Attend(  # noqa: N802
        self, requests: AsyncIterator[pb.FromAgent], context: Any
    ) -> AsyncIterator[Any]:
        """Keeps the stream to an agent."""
        try:
            async for message in self._shutdown.stream(
                self._node_manager.attend(requests)
            ):
                yield message
        except (DrivetrainError, ValueError) as error:
            await context.abort(_status_of(error), str(error))

    @_with_status
    async def Leave(self, request: pb.LeaveRequest, _: Any) -> pb.Done:  # noqa: N802
        """Lets a node leave."""
        self._node_manager.leave(
            request.node, request.within_s, request.reason, request.exit_code
        )
        return pb.Done()

    @_with_status
    async def Save(self, request: pb.SaveRequest, _: Any) -> pb.Done:  # noqa: N802
        """Asks for a checkpoint."""
        self._node_manager.save(request)
        return pb.Done()

    @_with_status
    async def Admit(self, request: pb.Admission, _: Any) -> pb.Done:  # noqa: N802
        """Says which nodes may train."""
        self._node_manager.admit(request)
        return pb.Done()

    @_with_status
    async def Stop(self, request: pb.StopRequest, _: Any) -> pb.Done:  # noqa: N802
        """Ends the job."""
        self._node_manager.stop(request.reason, request.exit_code)
        return pb.Done()

    @_with_status
    async def Readmit(self, request: pb.ReadmitRequest, _: Any) -> pb.Done:  # noqa: N802
        """Lets a machine take part again."""
        self._node_manager.readmit(request.machine)
        return pb.Done()

    @_with_status
    async def SetKey(self, request: pb.KeyValue, _: Any) -> pb.Done:  # noqa: N802
        """Sets a value."""
        self._store.set(request.key, request.value)
        await self._keep(request.key)
        return pb.Done()

    @_with_status
    async def GetKeys(self, request: pb.KeysRequest, _: Any) -> pb.Values:  # noqa: N802
        """Returns values, and waits for them."""
        found = self._store.get(list(request.keys), request.timeout_s)
        values = await self._shutdown.wait(found)
        others = []
        if request.prefix and values is not None:
            under = self._store.under(request.prefix, _MOST_OTHER_BYTES)
            others = [pb.KeyValue(key=key, value=value) for key, value in under]
        return pb.Values(values=values or [], found=values is not None, others=others)

    @_with_status
    async def AddToKey(self, request: pb.Addition, _: Any) -> pb.Number:  # noqa: N802
        """Adds to a number."""
        return pb.Number(
            number=self._store.add(request.key, request.amount, request.call)
        )

    @_with_status
    async def CompareKey(  # noqa: N802
        self, request: pb.Comparison, _: Any
    ) -> pb.KeyValue:
        """Sets a value if it is what is expected."""
        value = self._store.compare_set(request.key, request.expected, request.desired)
        if value == request.desired:
            await self._keep(request.key)
        return pb.KeyValue(key=request.key, value=value)

    @_with_status
    async def DeleteKey(self, request: pb.Key, _: Any) -> pb.Number:  # noqa: N802
        """Deletes a key."""
        return pb.Number(number=int(self._store.delete(request.key)))

    @_with_status
    async def CountKeys(self, request: pb.Key, _: Any) -> pb.Number:  # noqa: N802
        """Counts the keys that begin so."""
        return pb.Number(number=self._store.count(request.key))

    async def _keep(self, key: str) -> None:
        if key.startswith(f"{KEPT}/"):
            await self._writer.append([self._store.record_of(key)])

    @_with_status
    async def OpenDataset(  # noqa: N802
        self, request: pb.Dataset, _: Any
    ) -> pb.DatasetStatus:
        """Makes a dataset known."""
        given = {one.name: getattr(request, one.name) for one in fields(DatasetSpec)}
        for name in ("num_samples", "num_epochs"):
            given[name] = given[name] or None
        return dataset_status(await self._datasets.open(DatasetSpec(**given)))

    @_with_status
    async def LeaseShards(  # noqa: N802
        self, request: pb.LeaseRequest, _: Any
    ) -> pb.LeaseReply:
        """Leases shards, and waits for them."""
        spec = self._datasets.find(request.dataset).spec
        num_shards = request.num_shards
        if request.with_indices:
            num_shards = num_with_indices(spec, num_shards)
        found = self._datasets.lease(
            request.dataset,
            request.worker,
            num_shards,
            request.timeout_s,
            set(request.held),
        )
        leases, finished = await self._shutdown.wait(found)
        shards = [_shard(one) for one in leases]
        if request.with_indices:
            # Others are served meanwhile.
            await asyncio.to_thread(_add_indices, shards, spec)
        return pb.LeaseReply(shards=shards, finished=finished)

    @_with_status
    async def CommitShards(  # noqa: N802
        self, request: pb.CommitRequest, _: Any
    ) -> pb.CommitReply:
        """Takes reports of what was read."""
        refusals = await self._datasets.commit(
            request.dataset,
            request.worker,
            [(one.fence, one.upto) for one in request.commits],
        )
        return pb.CommitReply(refusals=refusals)

    @_with_status
    async def ReturnShards(  # noqa: N802
        self, request: pb.ReturnRequest, _: Any
    ) -> pb.CommitReply:
        """Takes shards back."""
        refusals = await self._datasets.give_back(
            request.dataset,
            request.worker,
            list(request.fences),
            request.failed,
            request.reason,
        )
        return pb.CommitReply(refusals=refusals)

    @_with_status
    async def GrowDataset(  # noqa: N802
        self, request: pb.Growth, _: Any
    ) -> pb.DatasetStatus:
        """Adds samples to a source."""
        state = await self._datasets.grow(
            request.dataset,
            request.num_samples,
            close=request.close,
            caller=request.caller,
            call=request.call,
        )
        return dataset_status(state)

    @_with_status
    async def GetStatus(  # noqa: N802
        self, _: pb.StatusRequest, __: Any
    ) -> pb.Status:
        """Returns how the job stands."""
        status = pb.Status(
            incarnation=self._incarnation,
            up_s=time.monotonic() - self._began_s,
            datasets=[dataset_status(s) for s in self._datasets.states.values()],
        )
        self._node_manager.describe(status)
        return status

    async def WatchEvents(  # noqa: N802
        self, request: pb.EventsRequest, context: Any
    ) -> AsyncIterator[pb.Event]:
        """Yields events."""
        start = getattr(request, "from")
        events = self._events.watch(start, follow=request.follow)
        try:
            async for event in self._shutdown.stream(events):
                yield pb.Event(**event._asdict())
        except MasterEndsError as error:
            await context.abort(_status_of(error), str(error))


def dataset_status(state: DatasetState) -> pb.DatasetStatus:
    """Returns how far a dataset is, as a message."""
    return pb.DatasetStatus(
        dataset=pb.Dataset(**asdict(state.spec) | {"num_samples": state.num_samples}),
        num_samples_done=state.num_samples_done,
        num_shards_done=len(state.done),
        num_leased=len(state.leased),
        num_waiting=len(state.waiting),
        dead=[
            pb.DeadShard(
                epoch=shard.epoch, start=shard.start, end=shard.end, reason=reason
            )
            for shard, reason in state.dead
        ],
        finished=state.is_finished and state.is_closed,
    )


def _shard(one: Lease) -> pb.Shard:
    _, epoch, start, end, _ = one.shard
    return pb.Shard(fence=one.fence, epoch=epoch, start=start, end=end)


def _add_indices(shards: list[pb.Shard], spec: DatasetSpec) -> None:
    for one in shards:
        found = indices_of(spec, epoch=one.epoch, start=one.start, end=one.end)
        one.indices.extend(found.tolist())
