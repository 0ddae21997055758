"""An operator that dies at a call, or is refused, leaves a cluster that becomes right."""

from __future__ import annotations

import itertools

import pytest
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

pytestmark = pytest.mark.extra

_names = (f"s{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with story_cluster() as double:
        prepare(double)
        yield double


@pytest.fixture(scope="module")
def num_calls(cluster):
    kill = KilledAt()
    live_story(cluster, next(_names), kill)
    return kill.num_calls


@pytest.fixture(scope="module")
def spot_calls(cluster):
    kill = KilledAt()
    live_spot_story(cluster, next(_names), kill)
    return kill.num_calls


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.45, 0.6, 0.75])
def test_operator_killed_at_a_call_is_followed_by_one_that_goes_on(
    cluster, num_calls, share, when
):
    kill = KilledAt(int(share * num_calls), when)
    name = next(_names)
    lineage = live_story(cluster, name, kill)
    assert kill.num_kills == 1
    assert lineage.num_operators == 2
    assert not leaked(cluster, name)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.65, 0.75])
def test_operator_killed_while_a_node_is_taken_is_followed_by_one_that_goes_on(
    cluster, spot_calls, share
):
    kill = KilledAt(int(share * spot_calls), "after")
    name = next(_names)
    lineage = live_spot_story(cluster, name, kill)
    assert lineage.num_operators == 2
    assert not leaked(cluster, name)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 409},
        {"status": 410},
        {"status": 429},
        {"status": 500},
        {"status": 500, "when": "after"},
        {"drop": True, "when": "after"},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_call_that_goes_wrong_changes_nothing_in_the_end(
    cluster, num_calls, share, fault
):
    cluster.faults.hook = one = FaultAt(int(share * num_calls), fault)
    try:
        name = next(_names)
        live_story(cluster, name)
    finally:
        cluster.faults.hook = None
    assert one.num_faults == 1
    assert not leaked(cluster, name)


@pytest.mark.slow
def test_watches_that_are_cut_all_the_time_lose_nothing(cluster):
    from drivetrain_cluster_double import Fault

    cut = Fault(verb="watch", drop=True, after_events=2, times=10_000)
    cluster.faults.add(cut)
    name = next(_names)
    live_story(cluster, name)
    cluster.faults.clear()
    assert not leaked(cluster, name)


@pytest.mark.slow
def test_random_lives_of_jobs_end_as_their_policies_say():
    with story_cluster() as cluster:
        prepare(cluster)
        problems, num_deaths = live_schedules(cluster, range(24))
    assert not problems
    assert num_deaths > 5
