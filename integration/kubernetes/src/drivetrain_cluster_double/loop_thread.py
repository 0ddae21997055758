"""A thread with an event loop, in which parts of the cluster work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from drivetrain_cluster_double.errors import StatusError

logger = logging.getLogger(__name__)


class LoopThread:
    """A thread with an event loop.

    Attributes:
        loop: The loop.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="double-parts", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, when all that runs in it was cut."""
        asyncio.run_coroutine_threadsafe(self._cut(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What was cut is closed by the loop, a moment later.
        await asyncio.sleep(0.01)

    def call(self, act: Callable[..., object], *arguments: Any) -> None:
        """Calls a function in the thread, soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._attempt, act, arguments)

    def _attempt(self, act: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            act(*arguments)
        except StatusError as error:
            # What it is about has changed again, which is told again.
            logger.debug("%s: %s", arguments, error)
        except Exception:
            # One object that cannot be handled must not stop the cluster.
            logger.exception("%s", arguments)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins to do something; in the thread itself."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
