"""Who asks a node's cloud whether the node will be taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core.services.capacity_notice import CapacityNotice


class NoticeWatch(Protocol):
    """Publishes what a cloud says of this node, from a thread of its own.

    Attributes:
        name: Of the cloud.
    """

    name: str

    def start(self) -> None:
        """Begins to ask."""

    def stop(self) -> None:
        """Ends; a question that is under way is not waited for."""

    def acknowledge(self) -> None:
        """Tells the cloud, if it asks, that this node is no longer needed.

        Raises:
            OSError: Nobody answers.
            DrivetrainError: The answer cannot be understood.
        """


@runtime_checkable
class CloudNotices(Protocol):
    """Knows clouds, and how they say that a node will be taken away."""

    def check(self, source: str) -> None:
        """Refuses a source that is not known.

        Args:
            source: `auto`, or the name of a cloud, which may have the URL of its endpoint:
                `aws=http://127.0.0.1:9000`.

        Raises:
            ValueError: There is no such cloud, or the URL is none.
        """

    def open(
        self,
        source: str,
        node: str,
        publish: Callable[[CapacityNotice], object],
        *,
        interval_s: float,
    ) -> NoticeWatch | None:
        """Returns a watch of this node that has not begun; it may take seconds.

        Args:
            source: As `check` takes it; `auto` looks for the cloud that answers here.
            node: The name of this node, as notices have it.
            publish: Takes each notice that is news, in the thread of the watch.
            interval_s: Between two questions.

        Returns:
            The watch; None if no cloud answers here yet.
        """


class NoCloud:
    """The fallback: knows no cloud, and says what does.

    Example:
        >>> NoCloud().check("aws")
        Traceback (most recent call last):
        ValueError: no installed package asks clouds: pip install drivetrain-cloud
    """

    def check(self, source: str) -> None:
        """Refuses every source."""
        del source
        message = "no installed package asks clouds: pip install drivetrain-cloud"
        raise ValueError(message)

    def open(
        self,
        source: str,
        node: str,
        publish: Callable[[CapacityNotice], object],
        *,
        interval_s: float,
    ) -> NoticeWatch | None:
        """Refuses every source."""
        del node, publish, interval_s
        self.check(source)
        return None
