"""Notices of Google Cloud, by its metadata server."""

from __future__ import annotations

from urllib.parse import quote

from drivetrain_cloud.notices.metadata_reader import MetadataReader
from drivetrain_cloud.notices.sighting import BadAnswerError, Sighting

_HEADERS = {"Metadata-Flavor": "Google"}
_ROOT = "/computeMetadata/v1/instance/"
# Between the word and the end: of a spot machine, and of upkeep that ends one.
_PREEMPTED_S, _MAINTENANCE_S = 30.0, 60.0


class GoogleCloud:
    """Asks the metadata server of a Compute Engine machine.

    Args:
        url: Of the server.
        wait_s: How long the server may hold a question until something changes: the
            notice is short, and is heard at once so.
        preempted_s: What the machine's `preemptionNoticeDuration` and shutdown leave.
    """

    name = "gcp"

    def __init__(
        self,
        url: str = "http://metadata.google.internal",
        *,
        wait_s: float = 15.0,
        preempted_s: float = _PREEMPTED_S,
    ) -> None:
        """Nobody is asked yet."""
        self._reader = MetadataReader(url)
        self._wait_s, self._preempted_s = wait_s, preempted_s
        self._etag = ""

    def is_here(self) -> bool:
        """Returns whether the server is that of Google."""
        self._get("id")
        return True

    def look(self) -> Sighting | None:
        """Returns what is said: that the machine is preempted, or its host ends."""
        query = ""
        if self._wait_s > 0 and self._etag:
            seconds = max(1, int(self._wait_s))
            query = f"?wait_for_change=true&timeout_sec={seconds}"
            query += f"&last_etag={quote(self._etag, safe='')}"
        said = self._get(f"preempted{query}", wait_s=self._wait_s if query else 0.0)
        if said not in {"TRUE", "FALSE"}:
            message = f"expected TRUE or FALSE, got {said[:40]!r}"
            raise BadAnswerError(message)
        if said == "TRUE":
            reason = "Google Cloud preempts this machine"
            return Sighting(remaining_s=self._preempted_s, reason=reason)
        upkeep = self._get("maintenance-event")
        if upkeep.startswith("TERMINATE"):
            reason = f"Google Cloud says {upkeep[:60]}"
            return Sighting(remaining_s=_MAINTENANCE_S, reason=reason)
        return None

    def acknowledge(self, event: str) -> None:
        """Does nothing: Google Cloud does not ask."""

    def _get(self, path: str, *, wait_s: float = 0.0) -> str:
        answer = self._reader.ask("GET", _ROOT + path, _HEADERS, timeout_s=2.0 + wait_s)
        if answer.headers.get("metadata-flavor") != "Google":
            message = (
                "expected an answer with Metadata-Flavor: Google, which this is not"
            )
            raise BadAnswerError(message)
        if answer.status == 404:
            return "NONE"
        if answer.status != 200:
            message = f"expected 200 for {path}, got {answer.status}"
            raise BadAnswerError(message)
        if path.startswith("preempted"):
            self._etag = answer.headers.get("etag", "")
        return answer.text()
