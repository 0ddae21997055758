"""The right to serve a job, which one of several masters has for a time."""

from __future__ import annotations

from typing import Protocol


class Lease(Protocol):
    """What a master must have to serve, where several stand ready.

    It decides who serves, not whose word counts: that is the journal's affair, which takes
    records only from the master that claimed it last. Used from one thread at a time.

    Attributes:
        holder: A word that no other object's lease has.
        lease_s: How long it lasts when it is not renewed.
        served_at: The address of the master that has it, as far as it is known.
    """

    holder: str
    lease_s: float
    served_at: str

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Waits for the lease; returns whether it was got in time.

        Args:
            timeout_s: How long to wait; None for as long as it takes.

        Raises:
            JournalError: Whoever gives it cannot be reached.
        """

    def renew(self, address: str = "") -> bool:
        """Has it last for another `lease_s`; returns whether it was still this one's.

        Args:
            address: Where its holder serves, for those who wait.

        Raises:
            JournalError: Whoever gives it cannot be reached now.
        """

    def release(self) -> None:
        """Lets go of it, so that the next one need not wait for its end.

        Never raises; there is nothing to let go of once it is lost.
        """
