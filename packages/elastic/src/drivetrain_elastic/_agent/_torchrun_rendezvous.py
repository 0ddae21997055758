"""Rendezvous handler `drivetrain` of torchrun: `torchrun --rdzv-backend=drivetrain`.

Each torchrun agent is a node with one worker, itself. The master's world says who takes
part and in which order; a newer world than the one that an agent has begun with makes it
start its workers again, and nobody waits for a node that has gone. When the job is stopped,
or the node is to leave, the agent stops its workers and ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from drivetrain_core import DrivetrainError, ProgramError
from drivetrain_elastic._agent._master_stream import MasterStream
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._master_store import MasterStore
from drivetrain_elastic._client._tls import channel_credentials
from drivetrain_elastic._client._token import read_token
from drivetrain_elastic._membership._rank_assignment import RankAssignment
from drivetrain_elastic._membership._torchrun_end import CLOSED, AgentEndError, end_of
from drivetrain_elastic._membership._world import call_roll
from drivetrain_elastic._observability._sections import TORCHRUN_AGENT
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from drivetrain_elastic._membership._torchrun_end import AgentEnd

logger = logging.getLogger(__name__)

_BACKEND = "drivetrain"
_JOIN_S = 600.0
_LAST_CALL_S = 5.0
_GOODBYE_S = 2.0


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Returns the handler of an agent of torchrun.

    Args:
        parameters: What the command line says.

    Raises:
        ProgramError: The master's address or the job's token is missing.
    """
    config = parameters.config
    token_file = config.get("token_file")
    token = os.environ.get("DRIVETRAIN_ELASTIC_TOKEN")
    if token_file:
        token = read_token(token_file)
    if not parameters.endpoint or not token:
        message = (
            "--rdzv-backend=drivetrain needs the master's address, --rdzv-endpoint, and "
            "the job's token: --rdzv-conf token_file=FILE, or DRIVETRAIN_ELASTIC_TOKEN"
        )
        raise ProgramError(message)
    return MasterRendezvous(
        parameters.endpoint,
        token,
        run_id=parameters.run_id,
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        local_address=parameters.local_addr,
        last_call_s=float(config.get("last_call_timeout", _LAST_CALL_S)),
        join_s=float(config.get("join_timeout", _JOIN_S)),
    )


class MasterRendezvous(RendezvousHandler):
    """Meets other agents of torchrun at the job's master.

    Args:
        address: Of the master, `host:port`.
        token: Of the job.
        run_id: What torchrun calls the job.
        min_nodes: No world has fewer agents.
        max_nodes: Nor more; others stand by.
        local_address: Where the others find this machine; by default its name.
        last_call_s: How long the first world waits for more than the fewest.
        join_s: How long `next_rendezvous` waits for a world.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_address: str | None = None,
        last_call_s: float = _LAST_CALL_S,
        join_s: float = _JOIN_S,
    ) -> None:
        self._run_id = run_id
        self._node = f"{socket.gethostname()}-{os.getpid()}"
        self._name = f"{self._node}/0"
        self._began_s = time.monotonic()
        self._terms = pb.Terms(
            min_workers=min_nodes,
            max_workers=max_nodes,
            unit=1,
            last_call_s=last_call_s,
            patience_s=join_s,
        )
        self._local_address = local_address
        self._join_s = join_s
        self._client = MasterClient(address, token)
        self._store = MasterStore(self._client)
        self._change = threading.Condition()
        self._world: pb.World | None = None
        self._entered = 0
        self._end: AgentEnd | None = None
        self._error: BaseException | None = None
        self._is_ready = False
        self._loop = asyncio.new_event_loop()
        self._stream = MasterStream(
            address,
            token,
            hello=self._hello,
            heartbeat=self._heartbeat,
            heard=self._heard,
            patience_s=join_s,
            tls=channel_credentials(),
        )
        self._thread = threading.Thread(
            target=self._run, name="drivetrain-rendezvous", daemon=True
        )
        self._thread.start()
        # An agent that ends says so, and the others need not find out.
        atexit.register(self._go_home)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._stream.run())
        except DrivetrainError as error:
            with self._change:
                self._error = error
                self._change.notify_all()
        finally:
            self._loop.close()

    # ---- the stream ----

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            node=self._node,
            host=socket.gethostname(),
            pid=os.getpid(),
            num_slots=1,
            workers=[self._report()],
            terms=self._terms,
        )

    def _heartbeat(self) -> pb.Heartbeat:
        progress = pb.WorkerProgress(
            name=self._name,
            pid=os.getpid(),
            phase=TORCHRUN_AGENT,
            phase_s=time.monotonic() - self._began_s,
        )
        return pb.Heartbeat(workers=[progress])

    def _report(self) -> pb.WorkerReport:
        state = pb.WorkerReport.READY if self._is_ready else pb.WorkerReport.STARTING
        return pb.WorkerReport(name=self._name, slot=0, state=state)

    def _heard(self, message: Any) -> None:
        with self._change:
            what = message.WhichOneof("what")
            if what == "world":
                self._world = message.world
            elif what == "command":
                has_begun = self._stream.num_streams > 1
                end = end_of(message.command, has_begun=has_begun)
                self._end = self._end if end is None else end.or_before(self._end)
            self._change.notify_all()

    def _send(self, **what: Any) -> None:
        message = pb.FromAgent(**what)
        # The loop has ended if the stream has.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stream.send, message)

    def _go_home(self) -> None:
        is_heard = self._stream.is_open
        if is_heard:
            self._send(goodbye=pb.Goodbye(reason="the torchrun agent has ended"))
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stream.close)
        if is_heard:
            self._thread.join(_GOODBYE_S)
        atexit.unregister(self._go_home)

    # ---- what torchrun asks ----

    def get_backend(self) -> str:
        """Returns the name of this rendezvous."""
        return _BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Says that workers make a store of their own."""
        return False

    def get_run_id(self) -> str:
        """Returns what torchrun calls the job."""
        return self._run_id

    def is_closed(self) -> bool:
        """Whether the job has ended, or this node is to leave it."""
        with self._change:
            return self._end is not None

    def set_closed(self) -> None:
        """Ends the job for all nodes."""
        with contextlib.suppress(DrivetrainError):
            self._client.call("Stop", pb.StopRequest(reason=CLOSED))

    def num_nodes_waiting(self) -> int:
        """Returns 1 if workers must stop: for a newer world, or since the agent ends."""
        with self._change:
            if self._end is not None and self._end.stops_workers:
                return 1
            world = self._world
            return int(world is not None and world.epoch > self._entered)

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for a world that this node has a place in, and for all of its agents.

        Raises:
            RendezvousClosedError: The job has ended, or this node leaves it; torchrun ends
                with the code that it has.
            RendezvousTimeoutError: No world came in time.
            RendezvousConnectionError: The master refuses this agent.
        """
        end_s = time.monotonic() + self._join_s
        if not self._is_ready:
            self._is_ready = True
            self._send(workers=pb.WorkerReports(reports=[self._report()]))
        elif not self.num_nodes_waiting():
            # The workers of this node have failed: all start anew.
            reason = "its workers start again"
            broken = pb.Broken(epoch=self._entered, worker=self._name, reason=reason)
            self._send(broken=broken)
        while True:
            assignment = self._next_assignment(end_s)
            is_whole = call_roll(
                assignment,
                self._store,
                patience_s=max(1.0, end_s - time.monotonic()),
                is_over=lambda: self.num_nodes_waiting() > 0 or self.is_closed(),
            )
            if is_whole:
                break
        logger.info(
            "rank %d of %d, world %d",
            assignment.rank,
            len(assignment.members),
            assignment.epoch,
        )
        store = PrefixStore(f"world/{assignment.epoch}", self._store)
        info = RendezvousStoreInfo.build(assignment.rank, store, self._local_address)
        return RendezvousInfo(store, assignment.rank, len(assignment.members), info)

    def _next_assignment(self, end_s: float) -> RankAssignment:
        def has_news() -> bool:
            return bool(self._end or self._error or self._place() is not None)

        with self._change:
            self._change.wait_for(has_news, max(0.0, end_s - time.monotonic()))
            if self._error is not None:
                raise RendezvousConnectionError(str(self._error)) from self._error
            if self._end is not None:
                logger.warning("%s", self._end.reason)
                raise AgentEndError(self._end)
            assignment = self._place()
            if assignment is None:
                message = f"no world with a place for this node in {self._join_s:g} s"
                raise RendezvousTimeoutError(message)
            self._entered = assignment.epoch
            return assignment

    def _place(self) -> RankAssignment | None:
        world = self._world
        if world is None or world.epoch <= self._entered:
            return None
        members = tuple(one.name for one in world.members)
        if self._name not in members:
            return None
        nodes = tuple(one.node for one in world.members)
        return RankAssignment(world.epoch, members.index(self._name), members, nodes)

    def shutdown(self) -> bool:
        """Ends the job, unless it goes on without this node, and leaves the master."""
        if not self.is_closed():
            self.set_closed()
        self._go_home()
        self._client.close()
        return True
