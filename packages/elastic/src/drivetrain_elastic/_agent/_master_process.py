"""A master as a child of the agent, started again whenever it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

# Of somebody who wants this one to end, and not of what it does itself.
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
# One that dies by itself sooner than this: another one would, too.
_QUICK_S = 2.0
_MOST_QUICK_DEATHS = 3
# Of one that is killed before it serves; each doubles the wait for the next start.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 5.0
_END_S = 5.0


class MasterProcess:
    """Keeps a master of a job running; used from one event loop.

    Args:
        address: Where it listens, `host:port`; port 0 takes one that is free, and keeps it.
        token_file: Where the job's token is.
        options: Others of the command `drivetrain-elastic master`.

    Attributes:
        token_file: Where the job's token is.
    """

    def __init__(self, address: str, token_file: str, options: Sequence[str]) -> None:
        self.token_file = token_file
        self._address = address
        self._options = ["--token-file", token_file, *options]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The master's process; 0 without one."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> str:
        """Starts the master and returns its address.

        Raises:
            ProgramError: It does not start; its output says why.
        """
        if not await self._try_to_start():
            message = "the master did not start; its output says why"
            raise ProgramError(message)
        return self._address

    async def _try_to_start(self) -> bool:
        """Returns whether it serves."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "drivetrain_elastic.cli", "master"),
            *("--with-parent", "--address", self._address, *self._options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        if line:
            self._address = line.split()[-1]
        return bool(line)

    async def run(self) -> None:
        """Starts it again and again, until this is cancelled.

        Raises:
            ProgramError: It ends by itself again and again as it starts.
        """
        num_quick, wait_s = 0, _FIRST_WAIT_S
        while True:
            assert self._process is not None
            began_s = time.monotonic()
            code = await self._process.wait()
            logger.warning("the master has ended with %d: starting another one", code)
            is_quick = time.monotonic() - began_s < _QUICK_S
            if not is_quick:
                num_quick = 0
            elif code not in _FROM_OUTSIDE:
                num_quick += 1
            if num_quick >= _MOST_QUICK_DEATHS:
                message = f"the master has died {num_quick} times as it started"
                raise ProgramError(message)
            if await self._try_to_start():
                wait_s = _FIRST_WAIT_S
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def close(self) -> None:
        """Ends it."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
