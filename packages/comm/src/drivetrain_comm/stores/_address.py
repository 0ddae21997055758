"""Where a Redis server is and which job is meant: `redis://[:PASSWORD@]HOST[:PORT]/JOB`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from drivetrain_core import DistributedError

SCHEMES = ("redis", "rediss")
_PORT = 6379
# What torch puts into a URL; it concerns the rendezvous, not the server.
_TORCHS = ("rank", "world_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisAddress:
    """A server and a job on it; shown without the password.

    Args:
        scheme: `redis`, or `rediss` for TLS.
        host: Its name or address.
        port: Its port.
        job: What the job calls itself.
        server_url: What redis-py connects to.
        given: What torch has put into the query.
    """

    scheme: str
    host: str
    port: int
    job: str
    server_url: str = field(repr=False)
    given: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Without user and password: `redis://host:6379/job`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.job}"


def parse_address(url: str) -> RedisAddress:
    """Returns the parts of a URL.

    Args:
        url: `redis://host:port/job`, or `rediss://...` for TLS. User and password stand
            before the host. The query goes to redis-py: `?db=1` chooses a database,
            `?ssl_ca_certs=FILE` whom to trust.

    Raises:
        DistributedError: It is no such URL, or names no host or no job.

    Example:
        >>> address = parse_address("redis://:secret@10.0.0.1/run-7?db=1")
        >>> str(address), address.server_url
        ('redis://10.0.0.1:6379/run-7', 'redis://:secret@10.0.0.1?db=1')
    """
    parts = urlsplit(url)
    wanted = "must be redis://HOST:PORT/JOB or rediss://HOST:PORT/JOB"
    if parts.scheme not in SCHEMES:
        message = f"the URL of a Redis store {wanted}, got the scheme {parts.scheme!r}"
        raise DistributedError(message)
    try:
        port = parts.port or _PORT
    except ValueError as error:
        message = f"the URL of a Redis store {wanted}; its port is no number to 65535"
        raise DistributedError(message) from error
    job = unquote(parts.path.strip("/"))
    for name, value in (("host", parts.hostname), ("job", job)):
        if not value:
            message = (
                f"the URL of a Redis store {wanted}, got no {name}. Jobs of different "
                "names do not see each other on one server"
            )
            raise DistributedError(message)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = {name: query.pop(name) for name in _TORCHS if name in query}
    return RedisAddress(
        scheme=parts.scheme,
        host=str(parts.hostname),
        port=port,
        job=job,
        server_url=parts._replace(path="", query=urlencode(query)).geturl(),
        given=given,
    )
