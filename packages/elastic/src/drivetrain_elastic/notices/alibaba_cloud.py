"""Notices of Alibaba Cloud, by its instance metadata."""

from __future__ import annotations

from drivetrain_elastic.notices.metadata_reader import MetadataReader
from drivetrain_elastic.notices.sighting import BadAnswerError, Sighting, seconds_until

__all__ = ["AlibabaCloud"]

_TOKEN_TTL_S = 21_600
_TERMINATION = "/latest/meta-data/instance/spot/termination-time"


class AlibabaCloud:
    """Asks the metadata service of an ECS instance.

    Args:
        url: Of the service.
    """

    name = "alibaba"

    def __init__(self, url: str = "http://100.100.100.200") -> None:
        """Nobody is asked yet."""
        self._reader = MetadataReader(url)
        self._token = ""

    def is_here(self) -> bool:
        """Returns whether the service gives tokens as that of Alibaba Cloud does."""
        self._renew_token()
        return True

    def look(self) -> Sighting | None:
        """Returns the time at which this instance is released, if there is one."""
        for _ in range(2):
            if not self._token:
                self._renew_token()
            headers = {"X-aliyun-ecs-metadata-token": self._token}
            answer = self._reader.ask("GET", _TERMINATION, headers)
            if answer.status == 404:
                return None
            if answer.status == 200:
                when = answer.text()
                return Sighting(
                    remaining_s=seconds_until(
                        when, date=answer.headers.get("date", "")
                    ),
                    reason=f"Alibaba Cloud releases this spot instance at {when}",
                )
            self._token = ""
        message = f"expected 200 or 404 for {_TERMINATION}, got {answer.status}"
        raise BadAnswerError(message)

    def acknowledge(self, event: str) -> None:
        """Does nothing: Alibaba Cloud does not ask."""

    def _renew_token(self) -> None:
        headers = {"X-aliyun-ecs-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        answer = self._reader.ask("PUT", "/latest/api/token", headers)
        token = answer.text()
        is_token = token.isascii() and token.isprintable() and 0 < len(token) <= 4096
        if answer.status != 200 or not is_token:
            message = f"expected a token, got {answer.status} {token[:40]!r}"
            raise BadAnswerError(message)
        self._token = token
