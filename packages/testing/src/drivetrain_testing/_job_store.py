"""The contract of the store that processes of a job share."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

from drivetrain_core.services.job_store import JobStore
from drivetrain_testing._clauses import must_raise, require


def check_job_store(service: JobStore, prefix: str = "check") -> None:
    """Checks that all who open the store of a job see one truth.

    Args:
        service: What is checked, in a process that has a job.
        prefix: Stands before every key that is written; nothing else is touched.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    require(isinstance(service, JobStore), "a service has open")
    key, count, late = (f"{prefix}/{name}" for name in ("key", "count", "late"))
    with ExitStack() as stack:
        one, other = (stack.enter_context(service.open()) for _ in range(2))
        require(
            one is not None and other is not None,
            "a process of a job is given a store, as often as it opens one",
        )
        assert one is not None
        assert other is not None
        require(
            one.compare_set(key, "", "1") == b"1",
            "compare_set writes a key that is not there, where nothing is expected",
        )
        require(
            other.compare_set(key, "", "2") == b"1" == other.get(key),
            "compare_set writes nothing where another value stands, and returns that",
        )
        require(
            other.compare_set(key, "1", "2") == b"2" == one.get(key),
            "compare_set replaces what is expected, and all see it",
        )
        other.set(key, b"\x00\xff\n")  # type: ignore[arg-type]  # as torch takes it
        require(one.get(key) == b"\x00\xff\n", "a value may be any bytes")
        require(
            [one.add(count, 2), other.add(count, 3), one.add(count, 0)] == [2, 5, 5],
            "add returns the sum of what all have added",
        )
        with must_raise(Exception, "a wait for a key that nobody sets ends"):
            one.wait([late], timedelta(seconds=0.2))
        other.set(late, "1")
        one.wait([late], timedelta(seconds=30))
    with service.open() as again:
        assert again is not None
        require(
            again.compare_set(late, "", "2") == b"1",
            "what was set outlives who has set it",
        )
