"""Control loop: objects of a kind are reconciled when something of theirs has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_cloud.kubernetes.carry_out import Carrier, StrangerError
from drivetrain_cloud.kubernetes.operator_actions import TellEvent
from drivetrain_cloud.kubernetes.work_queue import WorkQueue
from drivetrain_core import DistributedError, ProgramError

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.api_client import ApiClient
    from drivetrain_cloud.kubernetes.informer import Informer

logger = logging.getLogger(__name__)

_Key = tuple[str, str]


class ControlLoop:
    """Reconciles objects of a kind, each once at a time; of one event loop.

    Who inherits puts informers into `_informers`, adds what has changed to `queue`, and
    has `_reconcile`.

    Args:
        client: Of the API server.
        kind: Of the objects.
        num_workers: How many objects are looked at together.
        num_threads: In how many threads calls of masters wait.
        tells_all: Whether people are told of errors that nobody has thought of.

    Attributes:
        kind: Of the objects.
        queue: Of those that are to be looked at.
        num_looks: How many looks at an object have ended how.
        look_s: How long those took in all.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: str,
        *,
        num_workers: int,
        num_threads: int = 1,
        tells_all: bool = False,
    ) -> None:
        self._client = client
        self.kind = kind
        self._num_workers = num_workers
        self._tells_all = tells_all
        self.queue: WorkQueue[_Key] = WorkQueue()
        self._told: dict[_Key, str] = {}
        self.num_looks: Counter[str] = Counter()
        self.look_s: dict[str, float] = defaultdict(float)
        self._informers: dict[str, Informer] = {}
        self._executor = ThreadPoolExecutor(num_threads, "masters")
        self._carrier = Carrier(client, self._informers, self._executor)

    async def run(self) -> None:
        """Looks after the objects until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for informer in self._informers.values():
                    group.create_task(informer.run())
                for informer in self._informers.values():
                    await informer.is_synced.wait()
                for _ in range(self._num_workers):
                    group.create_task(self._work())
                self._begin(group)
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def unsynced(self) -> list[str]:
        """Returns the kinds of which there was no whole list yet."""
        return [k for k, one in self._informers.items() if not one.is_synced.is_set()]

    def phases(self) -> Counter[str]:
        """Returns how many objects are in each phase."""
        items = self._informers[self.kind].items()
        return Counter((one.get("status") or {}).get("phase") or "New" for one in items)

    def _begin(self, group: asyncio.TaskGroup) -> None:
        """Starts what else runs, once there was a whole list of each kind."""

    async def _reconcile(self, key: _Key) -> float:
        """Looks at an object and does what is to be done; returns when to look again."""
        raise NotImplementedError

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            began_s, outcome = time.monotonic(), "error"
            try:
                look_again_s = await self._reconcile(key)
            except DistributedError as error:
                least_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
                is_race = isinstance(error, ApiError) and error.reason == "Conflict"
                level = logging.DEBUG if is_race else logging.WARNING
                logger.log(level, "%s/%s is looked at again after: %s", *key, error)
                await self._tell(key, error)
                self.queue.retry(key, least_s)
            except Exception as error:
                # A job that nobody can make sense of must not end all others'.
                logger.exception("%s/%s cannot be looked after", *key)
                self.queue.retry(key, 1.0)
                if self._tells_all:
                    with contextlib.suppress(Exception):
                        await self._tell(key, error)
            else:
                outcome = "success"
                self.queue.forget(key)
                self.queue.add_after(key, look_again_s - time.monotonic())
            finally:
                self.queue.done(key)
                self.num_looks[outcome] += 1
                self.look_s[outcome] += time.monotonic() - began_s

    async def _tell(self, key: _Key, error: Exception) -> None:
        """Tells people once what the operator cannot get past without them."""
        item = self._informers[self.kind].get(*key)
        is_unknown = not isinstance(error, DistributedError)
        needs_somebody = isinstance(error, StrangerError) or (
            isinstance(error, ApiError) and error.status in {400, 403, 422}
        )
        note = str(error)
        if is_unknown and not isinstance(error, ProgramError):
            note = f"the operator cannot make sense of the job: {error!r}"
        if item is None or not (needs_somebody or is_unknown):
            return
        if self._told.get(key) == note:
            return
        self._told[key] = note
        event = TellEvent(reason="CannotReconcile", note=note, is_warning=True)
        await self._carrier.carry_out(item, [event], None)
