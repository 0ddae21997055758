"""Reads metadata that is given for a token only, as AWS and Alibaba Cloud do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cloud.notices.metadata_reader import MetadataReader
from drivetrain_cloud.notices.sighting import BadAnswerError

if TYPE_CHECKING:
    from drivetrain_cloud.notices.metadata_reader import Answer

_TTL_S = 21_600
_LONGEST_TOKEN = 4096


class TokenReader:
    """Asks for a token once, and again when it is refused.

    Args:
        url: Of the endpoint.
        header: In which the token is sent; the one that asks for it has `-ttl-seconds`
            after it.
    """

    def __init__(self, url: str, header: str) -> None:
        """Nobody is asked yet."""
        self._reader = MetadataReader(url)
        self._header = header
        self._token = ""

    def get(self, path: str) -> Answer | None:
        """Returns an answer; None where there is nothing.

        Args:
            path: Of what is asked for.

        Raises:
            OSError: Nobody answers.
            BadAnswerError: The answer is no such thing, or a new token is refused too.
        """
        for _ in range(2):
            if not self._token:
                self.renew()
            answer = self._reader.ask("GET", path, {self._header: self._token})
            if answer.status == 404:
                return None
            if answer.status == 200:
                return answer
            self._token = ""
        message = f"expected 200 or 404 for {path}, got {answer.status}"
        raise BadAnswerError(message)

    def renew(self) -> None:
        """Asks for a token.

        Raises:
            OSError: Nobody answers.
            BadAnswerError: What comes is no token.
        """
        headers = {f"{self._header}-ttl-seconds": str(_TTL_S)}
        answer = self._reader.ask("PUT", "/latest/api/token", headers)
        token = answer.text()
        is_token = token.isascii() and token.isprintable()
        if answer.status != 200 or not is_token or not 0 < len(token) <= _LONGEST_TOKEN:
            message = f"expected a token, got {answer.status} {token[:40]!r}"
            raise BadAnswerError(message)
        self._token = token
