"""Notices of Amazon Web Services, by its instance metadata service, version 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cloud.notices.sighting import BadAnswerError, Sighting, seconds_until
from drivetrain_cloud.notices.token_reader import TokenReader

if TYPE_CHECKING:
    from drivetrain_cloud.notices.metadata_reader import Answer

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
        self._reader = TokenReader(url, "X-aws-ec2-metadata-token")

    def is_here(self) -> bool:
        """Returns whether the service gives tokens as that of AWS does."""
        self._reader.renew()
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
        answer = self._reader.get(_SPOT)
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
        answer = self._reader.get(_LIFECYCLE)
        if answer is None or answer.text() != "Terminated":
            return None
        reason = "its Auto Scaling group terminates this instance"
        return Sighting(remaining_s=_NOTICE_S, reason=reason)

    def _maintenance(self) -> Sighting | None:
        answer = self._reader.get(_MAINTENANCE)
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
        answer = self._reader.get(_REBALANCE)
        if answer is None:
            return None
        reason = (
            f"AWS recommends to rebalance since {_mapping(answer).get('noticeTime')}"
        )
        return Sighting(remaining_s=_NOTICE_S, reason=reason, is_certain=False)


def _mapping(answer: Answer) -> dict[str, object]:
    said = answer.json()
    if not isinstance(said, dict):
        message = f"expected an object, got {said!r:.80}"
        raise BadAnswerError(message)
    return said
