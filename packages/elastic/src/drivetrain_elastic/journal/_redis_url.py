"""Which server, and which job on it, a URL names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from drivetrain_core import ProgramError

_SCHEMES = ("redis", "rediss", "unix")
_JOB = re.compile(r"[\w.-]{1,200}", re.ASCII)
_OPTIONS = {"job": str, "lease_s": float, "patience_s": float, "num_replicas": int}


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisPlace:
    """A server and a job.

    Attributes:
        server_url: What redis-py connects to.
        name: The same for messages, without a password.
        job: The name of the job.
        lease_s: How long a lease lasts when it is not renewed.
        patience_s: How long a server that is away is tried again.
        num_replicas: How many replicas must have a record before anybody is told.
    """

    server_url: str = field(repr=False)
    name: str
    job: str
    lease_s: float = 5.0
    patience_s: float = 10.0
    num_replicas: int = 0

    def __post_init__(self) -> None:
        """Checks the values."""
        rules = {
            "job": (
                _JOB.fullmatch(self.job),
                "of letters, digits and . _ -, for example ?job=train",
            ),
            "lease_s": (0.1 <= self.lease_s <= 3600, "0.1 to 3600 seconds"),
            "patience_s": (
                math.isfinite(self.patience_s) and self.patience_s >= 0,
                "0 seconds or more",
            ),
            "num_replicas": (0 <= self.num_replicas <= 100, "0 to 100"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                message = (
                    f"{self.name}: {name} must be {rule}, got {getattr(self, name)!r}"
                )
                raise ProgramError(message)

    def key(self, what: str) -> str:
        """Returns the name of one of the job's keys; a cluster has them in one place."""
        return f"drivetrain-elastic:{{{self.job}}}:{what}"


def is_redis_url(text: str) -> bool:
    """Returns whether a text is a URL of a Redis server.

    Example:
        >>> [is_redis_url(text) for text in ("redis://host", "unix:///run/r", "job.db")]
        [True, True, False]
    """
    return text.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES))


def read_url(url: str, **given: Any) -> RedisPlace:
    """Returns the place that a URL names.

    Args:
        url: `redis://host:port/number?job=name`, also `rediss://` and `unix://`. Other
            fields of a `RedisPlace` may follow the job; the rest is redis-py's.
        **given: Fields that count more than those of the URL, where they are not None.

    Raises:
        ProgramError: It is no such URL, or a value is out of range.

    Example:
        >>> place = read_url("redis://me:secret@host:6379/1?job=train&lease_s=2")
        >>> place.name, place.job, place.lease_s, place.server_url[-4:]
        ('redis://me:***@host:6379/1', 'train', 2.0, '79/1')
    """
    name = _mask(url)
    if not is_redis_url(url):
        message = f"{name} is no URL of redis://, rediss:// or unix://"
        raise ProgramError(message)
    base, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    fields: dict[str, Any] = {"job": ""}
    for key, kind in _OPTIONS.items():
        if key not in options:
            continue
        text = options.pop(key)
        try:
            fields[key] = kind(text)
        except ValueError:
            message = f"{name}: {key} must be a number, got {text!r}"
            raise ProgramError(message) from None
    fields |= {key: value for key, value in given.items() if value is not None}
    database = base.partition("://")[2].rpartition("@")[2].partition("/")[2]
    if not url.startswith("unix:") and database.strip("/") and not database.isdigit():
        message = f"{name} must end with the number of a database, and ?job=NAME"
        raise ProgramError(message)
    server_url = f"{base}?{urlencode(options)}" if options else base
    return RedisPlace(server_url=server_url, name=name, **fields)


def _mask(url: str) -> str:
    """Returns a URL without its password, and without its query, which may have one."""
    scheme, _, rest = url.partition("://")
    # A password may hold any of these signs, if somebody forgot to quote it.
    secret, at, host = rest.rpartition("@")
    user = f"{secret.partition(':')[0]}:***@" if at else ""
    return f"{scheme}://{user}{host.partition('?')[0]}"
