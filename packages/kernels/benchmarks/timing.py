"""Times of calls in turns, so that the load of others strikes all of them alike."""

import statistics
import time

__all__ = ["NOT_QUICK", "median_ratio", "seconds", "turns"]

from drivetrain_testing import Row

NOT_QUICK = Row(figure="left out by --quick", holds=None)


def turns(calls, rounds):
    """Seconds of each call by name, for rounds in which each is called once."""
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def seconds(times):
    """The median of each call's seconds."""
    return {name: statistics.median(found) for name, found in times.items()}


def median_ratio(times, ours, peer):
    """The median of the ratios of neighbouring calls."""
    pairs = zip(times[ours], times[peer], strict=True)
    return statistics.median(a / b for a, b in pairs)
