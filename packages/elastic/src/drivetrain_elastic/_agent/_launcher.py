"""Starts workers: asks the fork server for one, and looks after the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import DistributedError
from drivetrain_core.processes import ASK_WITHOUT_START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20
_LOADED = ("torch", "torch._dynamo", "drivetrain_elastic._training._loop")
_START_S = 120.0
# A worker is forked in milliseconds; a server that takes this long is stopped, or broken.
_ANSWER_S = 10.0


class Program(NamedTuple):
    """What a worker runs.

    Attributes:
        arguments: The script, or the module, and its arguments.
        is_module: Which of them.
        folder: Where it runs.
    """

    arguments: tuple[str, ...]
    is_module: bool
    folder: str


class Launcher:
    """Forks workers off a server that has torch loaded; used from one event loop.

    Args:
        program: What they run.
        loaded: Modules that the server imports, besides torch, before it forks.
        env: What the server sees of the environment.
    """

    def __init__(
        self, program: Program, *, loaded: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self._program = program
        self._loaded = [*_LOADED, *loaded]
        self._env = dict(env)
        self._server: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int:
        """The server's process; 0 without one."""
        return self._server.pid if self._server is not None else 0

    async def start(
        self, env: Mapping[str, str], descriptors: Sequence[int] = ()
    ) -> int:
        """Starts a worker and returns its process number; it is a child of this one.

        Args:
            env: All that it sees of the environment.
            descriptors: Its standard output and error; those of this process if empty.

        Raises:
            DistributedError: The server cannot be started, or does not answer.
        """
        request = {
            "agent": os.getpid(),
            "program": self._program.arguments,
            "is_module": self._program.is_module,
            "folder": self._program.folder,
            "env": dict(env),
        }
        data = json.dumps(request).encode()
        async with self._lock:
            reply = b""
            if self._control is not None:
                # The server may have died since it was used last, or been stopped.
                reply = await self._ask(data, descriptors)
            if not reply:
                await self._start_server()
                reply = await self._ask(data, descriptors)
            if not reply:
                # What it may still answer is for nobody else.
                await self.close()
        if not reply:
            message = (
                "the server that forks workers died as it was asked for one, or did not "
                f"answer within {_ANSWER_S:g} s"
            )
            raise DistributedError(message)
        return int(json.loads(reply)["pid"])

    async def _ask(self, data: bytes, descriptors: Sequence[int]) -> bytes:
        """Returns what the server answers; nothing if it does not."""
        assert self._control is not None
        loop = asyncio.get_running_loop()
        # An environment may be longer than what a packet holds.
        with os.fdopen(os.memfd_create("request"), "wb") as request:
            request.write(data)
            request.flush()
            try:
                socket.send_fds(
                    self._control, [b"{}"], [request.fileno(), *descriptors]
                )
                async with asyncio.timeout(_ANSWER_S):
                    return await loop.sock_recv(self._control, _MOST_BYTES)
            except OSError as error:
                logger.warning("the server that forks workers is replaced: %r", error)
                return b""

    async def _start_server(self) -> None:
        await self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = "drivetrain_elastic._agent._fork_server"
        with theirs:
            self._server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(theirs.fileno()), *self._loaded),
                pass_fds=[theirs.fileno()],
                env={**self._env, **ASK_WITHOUT_START},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        self._control = ours
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_S):
                greeting = await loop.sock_recv(ours, _MOST_BYTES)
        except TimeoutError:
            greeting = b""
        if not greeting:
            await self.close()
            message = (
                f"the server that forks workers did not start (python -m {module}); its "
                "output says why"
            )
            raise DistributedError(message)

    async def close(self) -> None:
        """Ends the server; workers go on."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                self._server.kill()
            await self._server.wait()
            self._server = None
