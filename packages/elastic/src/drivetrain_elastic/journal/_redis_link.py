"""A Redis server as one job sees it: a script is tried again while the server is away."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from drivetrain_core import MissingLibraryError, ProgramError
from drivetrain_elastic._observability._rate_limited_log import RateLimitedLog
from drivetrain_elastic.journal._record import JournalError

if TYPE_CHECKING:
    from types import ModuleType

    from drivetrain_elastic.journal._redis_url import RedisPlace

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
# A server says so while it starts, gives way to a replica, or lacks what it waits for.
_PASSING = (
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
)


class AwayError(JournalError):
    """The server cannot be reached; whether it did what was asked is not known."""


class RedisLink:
    """One connection to a server, made when it is needed; used from one thread at a time.

    Args:
        place: The server and the job.
        reply_s: How long the server may take to connect, and to answer.

    Raises:
        MissingLibraryError: redis-py is not installed.
        ProgramError: redis-py does not take the URL.
    """

    def __init__(self, place: RedisPlace, *, reply_s: float) -> None:
        """Connects to nothing yet."""
        self._name, self._patience_s = place.name, place.patience_s
        self._keys = [place.key(what) for what in ("journal", "records", "lease")]
        self._reply_s = reply_s
        self._rate_limit = RateLimitedLog()
        redis = _import_redis()
        self._raised = redis.exceptions
        try:
            pool = redis.ConnectionPool.from_url(
                place.server_url,
                protocol=2,
                # How often is decided here: every script may be sent again.
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
                socket_connect_timeout=reply_s,
                socket_timeout=reply_s,
            )
            self._connection: Any = pool.make_connection()
        except TypeError as error:
            message = f"redis-py does not take the options of {self._name}: {error}"
            raise ProgramError(message) from None
        except ValueError:
            # Its words may have a part of the password.
            message = (
                f"redis-py does not take the URL {self._name}: in names and passwords, "
                "signs other than letters and digits are written as %XX"
            )
            raise ProgramError(message) from None

    def run(
        self,
        script: str,
        *arguments: str | int,
        patience_s: float | None = None,
        num_replicas: int = 0,
    ) -> list[Any]:
        """Runs a script on the job's keys, and returns its reply.

        Args:
            script: It may be sent again, and must have no other effect then.
            *arguments: Of the script.
            patience_s: How long a server that is away is tried again; by default as the
                place has it.
            num_replicas: How many replicas must have what it wrote.

        Raises:
            AwayError: The server has not answered in time, or too few replicas have.
            JournalError: The server refuses this user, or the script.
        """
        end_s = time.monotonic() + (
            self._patience_s if patience_s is None else patience_s
        )
        words = ("EVAL", script, len(self._keys), *self._keys, *arguments)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                reply: list[Any] = self._send(*words)
                if num_replicas:
                    self._wait_for(num_replicas)
            except AwayError as error:
                is_over = time.monotonic() + pause_s > end_s
                # Whoever asks again and again is told now and then.
                if self._rate_limit.is_due(str(error)):
                    logger.warning("%s; it is tried again", error)
                if is_over:
                    raise
            else:
                self._rate_limit.forget()
                return reply
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def setting(self, name: str) -> str | None:
        """Returns a setting of the server, or None if it does not tell.

        Raises:
            AwayError: The server does not answer.
        """
        try:
            reply = self._send("CONFIG", "GET", name)
        except AwayError:
            raise
        except JournalError:
            return None
        return str(reply[1].decode()) if reply else None

    def close(self) -> None:
        """Ends the connection."""
        self._connection.disconnect()

    def _wait_for(self, num_replicas: int) -> None:
        # On the same connection, or the server does not know which write is meant.
        milliseconds = max(1, int(self._reply_s * 500))
        num_found = self._send("WAIT", num_replicas, milliseconds)
        if num_found < num_replicas:
            message = (
                f"{self._name}: {num_found} replicas have what was written, of "
                f"{num_replicas} that must"
            )
            raise AwayError(message)

    def _send(self, *words: str | int) -> Any:
        """Sends a command and returns the reply; the connection is as good as new."""
        raised = self._raised
        refusals = (
            raised.AuthenticationError,
            raised.AuthorizationError,
            raised.NoPermissionError,
        )
        try:
            self._connection.send_command(*words)
            return self._connection.read_response()
        except refusals as error:
            message = f"{self._name} refuses this user: {error}"
            raise JournalError(message) from error
        except (raised.ConnectionError, raised.TimeoutError, OSError) as error:
            # A reply that comes late must not be taken for that of another command.
            self._connection.disconnect()
            message = f"{self._name} does not answer: {error}"
            raise AwayError(message) from error
        except raised.RedisError as error:
            passing = isinstance(error, raised.ReadOnlyError | raised.ClusterError)
            if passing or any(word in str(error) for word in _PASSING):
                # Another server may have the name by now.
                self._connection.disconnect()
                message = f"{self._name} does not answer now: {error}"
                raise AwayError(message) from error
            message = f"{self._name} refuses what is asked of it: {error}"
            raise JournalError(message) from error
        except BaseException:
            self._connection.disconnect()
            raise


def _import_redis() -> ModuleType:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError as error:
        message = (
            "a journal in Redis needs redis-py, which is not installed: "
            'pip install "drivetrain-elastic[redis]"'
        )
        raise MissingLibraryError(message) from error
    return redis
