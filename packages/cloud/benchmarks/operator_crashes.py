"""A job's life on a cluster, once for each call at which its operator dies or is refused.

The cluster is the double of `drivetrain_cluster_double` with simulated pods; a
story is a creation, a scale up, a failure, a scale down and a deletion; of spot nodes, a
creation, a reclaim and a deletion.
"""

import itertools
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from operator_schedules import live_schedules
from operator_story import (
    FaultAt,
    KilledAt,
    leaked,
    live_spot_story,
    live_story,
    prepare,
    story_cluster,
)

from drivetrain_testing import Bar, Row, run_bars

_FAULTS = {
    **{f"{code}": {"status": code} for code in (409, 410, 429, 500)},
    "500 after": {"status": 500, "when": "after"},
    "dropped": {"drop": True},
    "dropped after": {"drop": True, "when": "after"},
}
_QUICK_EVERY = 9


def crashes(quick):
    """Kills the operator before and after each call; returns what came of it."""
    return _crashes(quick, live_story)


def spot_crashes(quick):
    """The same while a node of the job is taken back."""
    return _crashes(quick, live_spot_story)


def _crashes(quick, story):
    names = (f"s{number}" for number in itertools.count())
    began_s, problems, num = time.monotonic(), [], 0
    with story_cluster() as cluster:
        prepare(cluster)
        count = KilledAt()
        story(cluster, next(names), count)
        step = _QUICK_EVERY if quick else 1
        for at in range(0, count.num_calls, step):
            for when in ("before", "after"):
                name, kill = next(names), KilledAt(at, when)
                what = f"killed {when} call {at}"
                problems += _live(story, cluster, name, kill, what)
                num += kill.num_kills
    figure = (
        f"{count.num_calls} calls; killed {num} times, {len(problems)} stories went "
        f"wrong, in {time.monotonic() - began_s:.0f} s"
    )
    return Row(
        figure=figure,
        holds=not problems,
        proven_on="simulation",
        details={"calls": count.num_calls, "kills": num, "problems": problems},
    )


def refusals(quick):
    """Lets each call go wrong in each way; returns what came of it."""
    names = (f"r{number}" for number in itertools.count())
    began_s, problems, num = time.monotonic(), [], 0
    with story_cluster() as cluster:
        prepare(cluster)
        count = FaultAt()
        cluster.faults.hook = count
        live_story(cluster, next(names))
        step = _QUICK_EVERY if quick else 1
        for kind, options in _FAULTS.items():
            for at in range(0, count.num_calls, step):
                fault = FaultAt(at, options)
                cluster.faults.hook = fault
                what = f"{kind} at call {at}"
                problems += _live(live_story, cluster, next(names), None, what)
                num += fault.num_faults
    figure = (
        f"{count.num_calls} calls, {len(_FAULTS)} ways; {num} went wrong, "
        f"{len(problems)} stories did, in {time.monotonic() - began_s:.0f} s"
    )
    return Row(
        figure=figure,
        holds=not problems,
        proven_on="simulation",
        details={"calls": count.num_calls, "faults": num, "problems": problems},
    )


def schedules(quick):
    """Lives random lives, while two operators die and nodes are lost."""
    num, began_s = 40 if quick else 1_000, time.monotonic()
    with story_cluster() as cluster:
        prepare(cluster)
        problems, num_deaths = live_schedules(cluster, range(num))
    figure = (
        f"{num} schedules, operators died {num_deaths} times, {len(problems)} went "
        f"wrong, in {time.monotonic() - began_s:.0f} s"
    )
    return Row(
        figure=figure,
        holds=not problems,
        proven_on="simulation",
        details={"deaths": num_deaths, "problems": problems},
    )


def _live(story, cluster, name, kill, what):
    try:
        story(cluster, name, kill)
    except (TimeoutError, AssertionError) as error:
        at = kill.killed_at if kill else ""
        left = leaked(cluster, name)
        return [f"{name}: {what} {at}: {error!r}; {left}"]
    return []


if __name__ == "__main__":
    sys.exit(
        run_bars(
            [
                Bar(
                    name="operator-crashes",
                    bound="each story ends as it should, nothing is left",
                    measure=crashes,
                ),
                Bar(
                    name="operator-spot-crashes",
                    bound="each story ends as it should, nothing is left",
                    measure=spot_crashes,
                ),
                Bar(
                    name="operator-refusals",
                    bound="each story ends as it should, nothing is left",
                    measure=refusals,
                ),
            ],
            description=__doc__,
        )
    )
