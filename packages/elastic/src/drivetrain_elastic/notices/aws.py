"""Notices of Amazon Web Services, by its instance metadata service, version 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_elastic.notices.metadata_reader import MetadataReader
from drivetrain_elastic.notices.sighting import BadAnswerError, Sighting, seconds_until

if TYPE_CHECKING:
    from drivetrain_elastic.notices.metadata_reader import Answer

__all__ = ["Aws"]

_TOKEN_TTL_S = 21_600
_SPOT = "/latest/meta-data/spot/instance-action"
_LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"
_MAINTENANCE = "/latest/meta-data/events/maintenance/scheduled"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
# What AWS leaves between its word and the end, where it gives no time.
_NOTICE_S = 120.0


class Aws:
    """Asks the metadata service of an EC2 instance.

    Args:
        url: Of the service.
    """

    name = "aws"

    def __init__(self, url: str = "http://169.254.169.254") -> None:
        """Nobody is asked yet."""
        self._reader = MetadataReader(url)
        self._token = ""

    def is_here(self) -> bool:
        """Returns whether the service gives tokens as that of AWS does."""
        self._renew_token()
        return True

    def look(self) -> Sighting | None:
        """Returns what is said: an interruption, a termination, upkeep, or a risk."""
        for see in (self._spot, self._lifecycle, self._maintenance, self._rebalance):
            found = see()
            if found is not None:
                return found
        return None

    def acknowledge(self, event: str) -> None:
        """Does nothing: AWS does not ask."""

    def _spot(self) -> Sighting | None:
        answer = self._get(_SPOT)
        if answer is None:
            return None
        said = _mapping(answer)
        action, when = said.get("action"), said.get("time")
        if not isinstance(action, str) or not isinstance(when, str):
            message = f"expected action and time of an interruption, got {said!r:.80}"
            raise BadAnswerError(message)
        return Sighting(
            remaining_s=seconds_until(when, date=answer.headers.get("date", "")),
            reason=f"AWS will {action} this spot instance at {when}",
        )

    def _lifecycle(self) -> Sighting | None:
        answer = self._get(_LIFECYCLE)
        if answer is None or answer.text() != "Terminated":
            return None
        reason = "its Auto Scaling group terminates this instance"
        return Sighting(remaining_s=_NOTICE_S, reason=reason)

    def _maintenance(self) -> Sighting | None:
        answer = self._get(_MAINTENANCE)
        events = answer.json() if answer is not None else []
        if not isinstance(events, list):
            message = f"expected a list of events, got {events!r:.80}"
            raise BadAnswerError(message)
        found = None
        for event in events:
            if not isinstance(event, dict) or event.get("State") != "active":
                continue
            when, code = event.get("NotBefore"), event.get("Code")
            if answer is None or not isinstance(when, str):
                continue
            seconds = seconds_until(when, date=answer.headers.get("date", ""))
            if found is None or seconds < found.remaining_s:
                reason = f"AWS has scheduled {code} for {when}"
                found = Sighting(remaining_s=seconds, reason=reason)
        return found

    def _rebalance(self) -> Sighting | None:
        answer = self._get(_REBALANCE)
        if answer is None:
            return None
        reason = (
            f"AWS recommends to rebalance since {_mapping(answer).get('noticeTime')}"
        )
        return Sighting(remaining_s=_NOTICE_S, reason=reason, is_certain=False)

    def _get(self, path: str) -> Answer | None:
        """Returns an answer; None where there is nothing."""
        for _ in range(2):
            if not self._token:
                self._renew_token()
            headers = {"X-aws-ec2-metadata-token": self._token}
            answer = self._reader.ask("GET", path, headers)
            if answer.status == 404:
                return None
            if answer.status == 200:
                return answer
            self._token = ""
        message = f"expected 200 or 404 for {path}, got {answer.status}"
        raise BadAnswerError(message)

    def _renew_token(self) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        answer = self._reader.ask("PUT", "/latest/api/token", headers)
        token = answer.text()
        is_token = token.isascii() and token.isprintable() and 0 < len(token) <= 4096
        if answer.status != 200 or not is_token:
            message = f"expected a token, got {answer.status} {token[:40]!r}"
            raise BadAnswerError(message)
        self._token = token


def _mapping(answer: Answer) -> dict[str, object]:
    said = answer.json()
    if not isinstance(said, dict):
        message = f"expected an object, got {said!r:.80}"
        raise BadAnswerError(message)
    return said
