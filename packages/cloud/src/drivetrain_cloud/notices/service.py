"""The service `cloud_notices`: finds this node's cloud, and watches what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cloud.notices.known_clouds import cloud_of, find_cloud
from drivetrain_cloud.notices.watch import NoticeWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core.services import CapacityNotice

_AUTO = "auto"


class Clouds:
    """Knows the clouds of this package.

    Example:
        >>> Clouds().check("ibm")
        Traceback (most recent call last):
        ValueError: expected one of gcp, azure, alibaba, aws, got 'ibm'
    """

    def check(self, source: str) -> None:
        """Refuses a source that is not known.

        Args:
            source: `auto`, or what `cloud_of` takes.

        Raises:
            ValueError: There is no such cloud, or the URL is none.
        """
        if source != _AUTO:
            cloud_of(source)

    def open(
        self,
        source: str,
        node: str,
        publish: Callable[[CapacityNotice], object],
        *,
        interval_s: float,
    ) -> NoticeWatch | None:
        """Returns a watch of this node that has not begun; None if no cloud answers yet.

        Args:
            source: `auto`, which looks for the cloud that answers here, or what
                `cloud_of` takes.
            node: The name of this node, as notices have it.
            publish: Takes each notice that is news, in the thread of the watch.
            interval_s: Between two questions.
        """
        cloud = find_cloud() if source == _AUTO else cloud_of(source)
        if cloud is None:
            return None
        return NoticeWatch(cloud, node, publish, interval_s=interval_s)
