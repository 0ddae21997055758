"""The master of a job, in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_elastic._client._token import make_token
from drivetrain_elastic._master._datasets import Datasets
from drivetrain_elastic._master._events import EventLog
from drivetrain_elastic._master._journal_writer import JournalWriter
from drivetrain_elastic._master._key_value_store import KeyValueStore
from drivetrain_elastic._master._leadership import Leadership
from drivetrain_elastic._master._master_servicer import MasterServicer
from drivetrain_elastic._master._node_manager import NodeManager
from drivetrain_elastic._master._server import serving
from drivetrain_elastic._observability._metrics_server import MetricsServer
from drivetrain_elastic.journal import JournalError
from drivetrain_elastic.journal._open import open_journal
from drivetrain_elastic.journal._record import damaged, read_each
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    import os
    import ssl
    from typing import Self

    from drivetrain_elastic.journal import Journal, Lease, Record

logger = logging.getLogger(__name__)

_TICK_S = 1.0
# A journal is made shorter when it has more records than this.
_MOST_RECORDS = 100_000
_START_S = 30.0
_HEARTBEATS = 4


class Master:
    """Serves a job until it is stopped; a context manager.

    What it has told anybody is in its journal: a master that is started on the same
    journal goes on where the one before it was, and one that was replaced stops.

    Args:
        journal: The file of the journal, its URL in a Redis server, or a journal that is
            open, which the master closes. With a URL, the master waits until no other one
            serves the job, and gives way when it loses its lease.
        address: Where to listen, `host:port`; port 0 takes one that is free.
        token: Whoever knows it may take part; a new one by default.
        tls: The certificate of the server. Without it only this machine can reach it.
        patience_s: How long a worker may hold shards without a word.
        node_timeout_s: After what silence a node is gone; its agent is heard of four
            times as often.
        lease: Of the journal, if it was acquired already; the master releases it.
        metrics: Where Prometheus may read the state of the job, `host:port`; None for
            nowhere.

    Attributes:
        address: Where it listens.
        metrics: Where metrics are served; None if they are not.
        token: The token.
        incarnation: How many masters the journal has had.

    Raises:
        JournalError: The journal cannot be used.
        ProgramError: The address cannot be had, or is open to others without TLS.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Master(f"{folder}/job.db") as master:
        ...         print(master.incarnation, master.address.startswith("127.0.0.1:"))
        1 True
    """

    def __init__(
        self,
        journal: str | os.PathLike[str] | Journal,
        *,
        address: str = "127.0.0.1:0",
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        patience_s: float = 60.0,
        node_timeout_s: float = 2.0,
        lease: Lease | None = None,
        metrics: str | None = None,
    ) -> None:
        self.address = address
        self.metrics = metrics
        self.token = token or make_token()
        self._tls = tls
        self._journal, lease = open_journal(journal, lease, token=self.token)
        self.incarnation = self._journal.incarnation
        self._patience_s = patience_s
        self._node_timeout_s = node_timeout_s
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._leadership = Leadership(lease, self._stopping)
        self._started = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._run, name="drivetrain-master", daemon=True
        )
        self._thread.start()
        if not self._started.wait(_START_S):
            message = f"the master did not start within {_START_S:g} s"
            raise ProgramError(message)
        if self._errors:
            self._thread.join()
            raise self._errors.pop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._hold())
        except BaseException as error:  # noqa: BLE001
            # Whoever made the master gets it, or whoever stops it.
            self._errors.append(error)
        finally:
            self._started.set()

    async def _hold(self) -> None:
        async with self._leadership:
            await self._serve()

    async def _serve(self) -> None:
        writer = JournalWriter(self._journal)
        try:
            datasets = Datasets(writer, patience_s=self._patience_s)
            events = EventLog(writer)
            store = KeyValueStore()
            node_manager = NodeManager(
                writer,
                events,
                store,
                incarnation=self.incarnation,
                heartbeat_s=self._node_timeout_s / _HEARTBEATS,
                timeout_s=self._node_timeout_s,
            )
            # In a thread: the lease is renewed meanwhile.
            await asyncio.to_thread(
                _replay, self._journal, datasets, events, node_manager, store
            )
            servicer = MasterServicer(
                store, writer, datasets, events, node_manager, self.incarnation
            )
            status = functools.partial(servicer.GetStatus, pb.StatusRequest(), None)
            try:
                datasets.begin()
                node_manager.begin()
                # Values that no message can hold show here, and not to who asks later.
                await status()
            except Exception as error:
                where = "its records do not fit together"
                raise damaged(_name_of(self._journal), where, error) from error
            async with contextlib.AsyncExitStack() as stack:
                if self.metrics is not None:
                    metrics = MetricsServer(status)
                    stack.callback(metrics.close)
                    self.metrics = await metrics.listen(self.metrics)
                host = self.address.rsplit(":", 1)[0]
                port = await stack.enter_async_context(
                    serving(servicer, self.address, token=self.token, tls=self._tls)
                )
                self.address = f"{host}:{port}"
                self._leadership.publish(self.address)
                number = str(self.incarnation)
                await events.add("master", number, "it has begun to serve")
                logger.info("master %s serves at %s", number, self.address)
                self._started.set()
                await self._watch(datasets, node_manager, writer)
                servicer.end()
        finally:
            await writer.close()

    async def _watch(
        self, datasets: Datasets, node_manager: NodeManager, writer: JournalWriter
    ) -> None:
        """Decides what nobody asks for, until this master is stopped or replaced."""
        work = [
            asyncio.create_task(one)
            for one in (
                self._stopping.wait(),
                node_manager.run(),
                _expire(datasets, writer),
            )
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in work:
                one.cancel()
            results = await asyncio.gather(*work, return_exceptions=True)
        if writer.failure is not None:
            logger.warning("this master gives way: %s", writer.failure)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, JournalError):
                raise result

    def stop(self) -> None:
        """Ends the service; what was told stays in the journal.

        Raises:
            BaseException: What the service has failed with.
        """
        # The loop may have ended by itself.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._errors:
            raise self._errors.pop()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the service has ended; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _expire(datasets: Datasets, writer: JournalWriter) -> None:
    # The writer knows whether it has failed for good.
    while writer.failure is None:
        await asyncio.sleep(_TICK_S)
        with contextlib.suppress(JournalError):
            await datasets.expire(())


_Keeper = Datasets | EventLog | NodeManager | KeyValueStore


def _replay(journal: Journal, *keepers: _Keeper) -> None:
    """Brings back what the masters before this one had written."""

    def replay(record: Record) -> None:
        if not any(one.replay(record) for one in keepers):
            message = f"it is of a kind unknown here: {record.kind}"
            raise ValueError(message)

    records = journal.records()
    read_each(_name_of(journal), replay, records)
    if len(records) > _MOST_RECORDS:
        journal.replace([entry for one in keepers for entry in one.dump()])


def _name_of(journal: Journal) -> str:
    return str(getattr(journal, "name", "of this master"))
