"""A Redis server as one job sees it: commands are tried again while it is away."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import secrets
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from drivetrain_comm.stores import _scripts
from drivetrain_core import DistributedError, MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from drivetrain_comm.stores._address import RedisAddress

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_REPLY_S = 10.0

# One thread of a process renews the keys of all its clients.
_changed = threading.Condition()
_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_keeper: dict[str, int] = {}


class _UnknownScriptError(DistributedError):
    """The server has not seen a script yet."""


class Client:
    """Speaks to one server for one job, and notices when it has lost its memory.

    Thread-safe: each thread that is within a command has a connection to itself, made
    when there is no idle one. It may be used after a fork.

    Args:
        address: The server and the job.
        prefix: Of all the keys.
        rank: Who speaks; for messages.
        ttl_s: When the server forgets the job after its last sign of life.
        retry_s: For how long a server that is away is tried again.

    Raises:
        MissingLibraryError: redis-py is not installed.
        DistributedError: redis-py does not take the query of the URL.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        prefix: str,
        rank: int | None,
        ttl_s: float,
        retry_s: float,
    ) -> None:
        """Connects to nothing yet."""
        self.data = self._job = prefix
        self.redis = _import_redis()
        self._who = f"Redis at {address.host}:{address.port}, job {address.job!r}, " + (
            "rank unknown" if rank is None else f"rank {rank}"
        )
        self._retry_s = retry_s
        self.ttl_ms = max(1, int(ttl_s * 1000))
        self._mark = secrets.token_hex(8)
        self._born: Any = None
        self.is_closed = False
        self.renew_at = 0.0
        self._lock = threading.Lock()
        self._writers: list[tuple[str, int]] = []
        try:
            pool = self.redis.ConnectionPool.from_url(
                address.server_url,
                redis_connect_func=self._greet,
                **_options(self.redis),
            )
        except (TypeError, ValueError) as error:
            message = f"redis-py does not take the URL of {self._who}: {error}"
            raise DistributedError(message) from None
        self._new_connection = pool.make_connection
        self._idle: list[Any] = []

    def script(self, text: str, key: str, *arguments: object) -> Any:
        """Runs a script; `key` is for messages."""
        words = (1, self.data, *arguments)
        try:
            return self.run(key, "EVALSHA", _digest(text), *words)
        except _UnknownScriptError:
            return self.run(key, "EVAL", text, *words)

    def once(self, text: str, key: str, *arguments: bytes | str | int) -> bytes:
        """Runs a script that counts once even if its reply is lost on the way."""
        # A writer has one write under way, so that one last reply is enough for it.
        try:
            writer, number = self._writers.pop()
        except IndexError:
            writer, number = secrets.token_hex(8), 0
        try:
            # A fork goes on with the same numbers.
            name = f"{writer}.{os.getpid()}"
            reply = self.script(
                text, key, self.ttl_ms, name, number, _bytes(key), *arguments
            )
            return bytes(reply)
        finally:
            self._writers.append((writer, number + 1))

    def block(self, waiter: str, seconds: float, key: str) -> bool:
        """Returns whether a waiter was woken, which may take some seconds."""
        # 0 would be for ever.
        most_s = f"{max(seconds, 0.01):.3f}"
        return bool(self.run(key, "BLPOP", f"{self.data}:wake:{waiter}", most_s))

    def run(self, key: str, *words: object) -> Any:
        """Returns the reply to a command, once the server answers.

        Args:
            key: What it is about, for messages.
            *words: The command; it may be sent again.

        Raises:
            DistributedError: The server is away for too long, refuses the password or
                the command, or has forgotten the job.
        """
        raised = self.redis.exceptions
        refusals = (raised.AuthenticationError, raised.NoPermissionError)
        outages = (
            raised.ConnectionError,
            raised.TimeoutError,
            raised.BusyLoadingError,
            raised.ReadOnlyError,
            OSError,
        )
        gone_at: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._command(*words)
            except raised.NoScriptError as error:
                raise _UnknownScriptError from error
            except refusals as error:
                message = (
                    f"{self._who} refuses this user (key {key!r}): {error}. Check the "
                    "user and password in the URL"
                )
                raise DistributedError(message) from error
            except outages as error:
                now = time.monotonic()
                if gone_at is None:
                    gone_at = now
                    logger.warning("%s does not answer: %s", self._who, error)
                if now - gone_at + pause_s > self._retry_s:
                    message = (
                        f"{self._who} has not answered for {self._retry_s:g} s (key "
                        f"{key!r}): {error}"
                    )
                    raise DistributedError(message) from error
            except raised.ResponseError as error:
                message = f"{self._who} refuses what is asked of {key!r}: {error}"
                raise DistributedError(message) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def enter(self, prefix: str) -> None:
        """Goes on with other keys of the job."""
        self.data = prefix

    def forget(self) -> None:
        """Deletes the job's keys from the server."""
        names = [self.data + end for end in ("", ":need", ":once")]
        names += [self._job, f"{self._job}:once", f"{self._job}:born"]
        self.run("all", "DEL", *names)
        self.close()

    def close(self) -> None:
        """Closes the connections that nobody is using."""
        self.is_closed = True
        while self._idle:
            self._idle.pop().disconnect()

    def _command(self, *words: object) -> Any:
        # redis-py's own pool and client take as long as the server and the network.
        connection = self._take()
        try:
            connection.send_command(*words)
            reply = connection.read_response()
        except self.redis.ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:
            # Its reply may still come, and must not be taken for that of another.
            connection.disconnect()
            raise
        self._idle.append(connection)
        return reply

    def _take(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._new_connection()
            # After a fork, the parent's connections are not ours to use.
            if connection.pid == os.getpid():
                return connection

    def _greet(self, connection: Any) -> None:
        """Looks on each new connection whether the server still knows the job.

        It may have been restarted meanwhile, and be empty.
        """
        try:
            connection.on_connect()
            self._look_for_mark(connection)
        except BaseException:
            connection.disconnect()
            raise

    def _look_for_mark(self, connection: Any) -> None:
        with self._lock:
            # Only the first greeting may leave a mark: later ones look for it.
            mark = self._mark if self._born is None else ""
            names = self.data, self._job
            connection.send_command(
                "EVAL", _scripts.GREET, 2, *names, str(self.ttl_ms), mark
            )
            born = connection.read_response()
            if self._born is None:
                self._born = born
                _keep_alive(self)
            is_known = born == self._born
        if not is_known:
            message = (
                f"{self._who} has forgotten the job's keys: it was restarted "
                "without persistence, flushed, or short of memory. Start the job again"
            )
            raise DistributedError(message)

    def renew(self) -> None:
        """Has the server remember the job for another time to live."""
        names = self.data, self._job
        self._command("EVAL", _scripts.GREET, 2, *names, self.ttl_ms, "")


@functools.cache
def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _keep_alive(client: Client) -> None:
    """Has a thread of this process renew the client's keys while the client lives."""
    with _changed:
        client.renew_at = time.monotonic() + client.ttl_ms / 4000
        _clients.add(client)
        if _keeper.get("pid") != os.getpid():
            _keeper["pid"] = os.getpid()
            threading.Thread(
                target=_renew, name="drivetrain-redis", daemon=True
            ).start()
        _changed.notify()


def _renew() -> None:
    while True:
        now = time.monotonic()
        with _changed:
            alive = [client for client in _clients if not client.is_closed]
        due = [client for client in alive if client.renew_at <= now]
        for client in due:
            client.renew_at = now + client.ttl_ms / 4000
            try:
                client.renew()
            except (client.redis.RedisError, DistributedError, OSError) as error:
                # The next command says so, if the server is still away then or has
                # forgotten the job. Other clients' keys are renewed in any case.
                logger.debug("the job's keys were not renewed: %s", error)
        pause_s = min((client.renew_at - now for client in alive), default=60.0)
        # Nothing here may keep a client alive that is in use no more.
        alive, due, client = [], [], None  # type: ignore[assignment]
        with _changed:
            _changed.wait(max(pause_s, 0.01))


@functools.cache
def _options(redis: ModuleType) -> dict[str, Any]:
    """Returns how redis-py connects: no retries of its own, no greeting of its own."""
    known = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
    # Telling the server who asks costs two round trips a connection.
    quiet = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return {
        "protocol": 2,
        "retry": retry,
        "socket_connect_timeout": _REPLY_S / 2,
        "socket_timeout": _REPLY_S,
        "socket_keepalive": True,
        **dict.fromkeys(quiet),
    }


def _import_redis() -> ModuleType:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError as error:
        message = (
            "a Redis store needs redis-py, which is not installed: "
            "pip install 'drivetrain-comm[redis]'"
        )
        raise MissingLibraryError(message) from error
    return redis


def _bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")


def rank_from(environment: Any = os.environ) -> int | None:
    """Returns the rank that a launcher has set, or None."""
    text = environment.get("RANK", "")
    return int(text) if text.isdigit() else None


def encode_all(keys: Sequence[str | bytes]) -> list[bytes]:
    """Returns keys as the server has them; torch's are text or bytes."""
    return [_bytes(key) for key in keys]
