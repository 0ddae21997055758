"""Notices of Alibaba Cloud, by its instance metadata."""

from __future__ import annotations

from drivetrain_cloud.notices.sighting import Sighting, seconds_until
from drivetrain_cloud.notices.token_reader import TokenReader

_TERMINATION = "/latest/meta-data/instance/spot/termination-time"


class AlibabaCloud:
    """Asks the metadata service of an ECS instance.

    Args:
        url: Of the service.
    """

    name = "alibaba"

    def __init__(self, url: str = "http://100.100.100.200") -> None:
        """Nobody is asked yet."""
        self._reader = TokenReader(url, "X-aliyun-ecs-metadata-token")

    def is_here(self) -> bool:
        """Returns whether the service gives tokens as that of Alibaba Cloud does."""
        self._reader.renew()
        return True

    def look(self) -> Sighting | None:
        """Returns the time at which this instance is released, if there is one."""
        answer = self._reader.get(_TERMINATION)
        if answer is None:
            return None
        when = answer.text()
        return Sighting(
            remaining_s=seconds_until(when, date=answer.headers.get("date", "")),
            reason=f"Alibaba Cloud releases this spot instance at {when}",
        )

    def acknowledge(self, event: str) -> None:
        """Does nothing: Alibaba Cloud does not ask."""
