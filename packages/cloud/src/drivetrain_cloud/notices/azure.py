"""Notices of Azure, by its scheduled events."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from drivetrain_cloud.notices.metadata_reader import MetadataReader
from drivetrain_cloud.notices.sighting import BadAnswerError, Sighting, seconds_until

_HEADERS = {"Metadata": "true"}
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
# What ends the processes of a machine. Freeze only stops it for some seconds.
_ENDING = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})


class Azure:
    """Asks the metadata service of an Azure machine.

    Args:
        url: Of the service.
    """

    name = "azure"

    def __init__(self, url: str = "http://169.254.169.254") -> None:
        """Nobody is asked yet."""
        self._reader = MetadataReader(url)
        self._machine = ""

    def is_here(self) -> bool:
        """Returns whether the service knows this machine by a name."""
        answer = self._reader.ask("GET", _NAME, _HEADERS)
        if answer.status != 200:
            message = f"expected the name of this machine, got {answer.status}"
            raise BadAnswerError(message)
        name = answer.text()
        if not 0 < len(name) <= 64 or quote(name, safe="-_.") != name:
            message = f"expected the name of this machine, got {name[:80]!r}"
            raise BadAnswerError(message)
        self._machine = name
        return True

    def look(self) -> Sighting | None:
        """Returns the event that ends this machine first; others' are not ours."""
        if not self._machine:
            self.is_here()
        # The first question switches the service on, which may take minutes.
        answer = self._reader.ask("GET", _EVENTS, _HEADERS, timeout_s=10.0)
        if answer.status != 200:
            message = f"expected scheduled events, got {answer.status}"
            raise BadAnswerError(message)
        said = answer.json()
        events = said.get("Events") if isinstance(said, dict) else None
        if not isinstance(events, list):
            message = f"expected an object with Events, got {said!r:.80}"
            raise BadAnswerError(message)
        date = answer.headers.get("date", "")
        found = [self._sighting(event, date) for event in events]
        return min(
            (one for one in found if one is not None),
            key=lambda one: one.remaining_s,
            default=None,
        )

    def acknowledge(self, event: str) -> None:
        """Lets Azure go on with an event at once; nobody pays for the rest of it."""
        body = json.dumps({"StartRequests": [{"EventId": event}]}).encode()
        headers = {**_HEADERS, "Content-Type": "application/json"}
        answer = self._reader.ask("POST", _EVENTS, headers, body=body)
        if answer.status != 200:
            message = f"expected 200 for the start of {event}, got {answer.status}"
            raise BadAnswerError(message)

    def _sighting(self, event: Any, date: str) -> Sighting | None:
        if not isinstance(event, dict):
            message = f"expected an event, got {event!r:.80}"
            raise BadAnswerError(message)
        resources = event.get("Resources")
        is_ours = isinstance(resources, list) and self._machine in resources
        if event.get("EventType") not in _ENDING or not is_ours:
            return None
        when = event.get("NotBefore")
        # One that has begun has no time any more.
        seconds = 0.0
        if isinstance(when, str) and when:
            seconds = seconds_until(when, date=date)
        kind, number = event["EventType"], event.get("EventId")
        return Sighting(
            remaining_s=seconds,
            reason=f"Azure has scheduled {kind} for {when or 'now'}",
            event=number if isinstance(number, str) else "",
        )
