"""A pool of processes, taken away and given back as a trace says."""

from __future__ import annotations

import subprocess
import time

import pytest

from drivetrain_cloud.notices import cloud_of
from drivetrain_cloud.spot import Market
from drivetrain_cloud.spot.local_pool import CapacityChange, LocalPool
from drivetrain_core import ProgramError


class Agents:
    """Starts processes that sleep, and keeps what they were told."""

    def __init__(self):
        self.processes, self.notices = {}, {}
        self.command = ["sleep", "300"]

    def start(self, node, notices):
        self.notices[node] = notices
        self.processes[node] = subprocess.Popen(self.command)
        return self.processes[node]


@pytest.fixture
def agents():
    found = Agents()
    yield found
    for process in found.processes.values():
        process.kill()
        process.wait()


def pool_of(agents, *changes, **options):
    trace = [CapacityChange(*one) for one in changes]
    return LocalPool(agents.start, trace, **options)


def running(pool, now_s):
    return [one.name for one in pool.nodes(now_s) if one.is_running]


def test_nodes_come_as_the_trace_allows_and_as_they_boot(agents):
    with pool_of(agents, (0, 1), (10, 2), boot_s=5.0) as pool:
        now_s = time.monotonic()
        names = pool.request(Market.SPOT, 2)
        assert [one.name for one in pool.nodes(now_s)] == list(names)
        assert running(pool, now_s + 4.0) == []
        assert running(pool, now_s + 6.0) == ["spot-0"]
        assert running(pool, now_s + 11.0) == ["spot-0", "spot-1"]
        assert [one.what for one in pool.events] == ["came", "came"]


def test_a_node_that_is_taken_hears_of_it_and_is_killed_at_the_deadline(agents):
    clouds = [("aws", 120.0), ("azure", 30.0)]
    with pool_of(agents, (0, 2), (50, 0), clouds=clouds) as pool:
        now_s = time.monotonic()
        pool.request(Market.SPOT, 2)
        assert len(running(pool, now_s)) == 2
        heard = {name: cloud_of(text) for name, text in agents.notices.items()}
        assert [one.name for one in heard.values()] == ["aws", "azure"]
        assert all(one.look() is None for one in heard.values())
        assert len(running(pool, now_s + 50.0)) == 2
        left_s = {name: one.look().remaining_s for name, one in heard.items()}
        assert 110.0 < left_s["spot-0"] <= 120.0
        assert 20.0 < left_s["spot-1"] <= 30.0
        assert running(pool, now_s + 81.0) == ["spot-0"]
        assert agents.processes["spot-1"].poll() is not None
        assert running(pool, now_s + 171.0) == []
        said = [(one.what, one.node) for one in pool.events[2:]]
        assert sorted(said[:2]) == [("noticed", "spot-0"), ("noticed", "spot-1")]
        assert said[2:] == [("killed", "spot-1"), ("killed", "spot-0")]


def test_a_node_that_will_be_taken_makes_room_for_none_before_the_trace_does(agents):
    with pool_of(agents, (0, 1), (10, 0), (20, 1)) as pool:
        now_s = time.monotonic()
        pool.request(Market.SPOT, 1)
        assert running(pool, now_s) == ["spot-0"]
        pool.nodes(now_s + 10.0)
        pool.request(Market.SPOT, 1)
        assert running(pool, now_s + 15.0) == ["spot-0"]
        assert running(pool, now_s + 20.0) == ["spot-0", "spot-1"]


def test_nodes_on_demand_come_whatever_the_trace_says(agents):
    with pool_of(agents, (0, 0)) as pool:
        now_s = time.monotonic()
        pool.request(Market.ON_DEMAND, 1)
        assert running(pool, now_s) == ["on-demand-0"]
        assert pool.nodes(now_s)[0].market == Market.ON_DEMAND


def test_requests_are_cancelled_and_nodes_given_back(agents):
    with pool_of(agents, (0, 1)) as pool:
        now_s = time.monotonic()
        first, second = pool.request(Market.SPOT, 2)
        assert running(pool, now_s) == [first]
        assert pool.offered(now_s) == 0
        pool.cancel(first)
        pool.cancel(second)
        assert [one.name for one in pool.nodes(now_s)] == [first]
        pool.release(first)
        pool.release(first)
        agents.processes[first].wait(60.0)
        assert pool.nodes(now_s) == ()
        assert pool.offered(now_s) == 1
        assert pool.events[-1].what == "ended"
        pool.release("nobody")
        pool.cancel("nobody")


def test_a_pool_leaves_no_process_behind(agents):
    with pool_of(agents, (0, 2)) as pool:
        pool.request(Market.SPOT, 2)
        pool.nodes(time.monotonic())
    assert all(one.poll() is not None for one in agents.processes.values())


def test_agents_that_end_by_themselves_again_and_again_are_an_error(agents):
    agents.command = ["sh", "-c", "exit 7"]
    now_s = time.monotonic()
    with pool_of(agents, (0, 1)) as pool:
        for number in range(5):
            (name,) = pool.request(Market.SPOT, 1)
            assert len(pool.nodes(now_s)) == 1
            agents.processes[name].wait(60.0)
            if number < 4:
                assert pool.nodes(now_s) == ()
        with pytest.raises(ProgramError, match=r"5 agents in a row .* exit code 7"):
            pool.nodes(now_s)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ([], {}, "the first at 0"),
        ([(5, 1)], {}, "the first at 0"),
        ([(0, 1), (9, 2), (3, 1)], {}, "in the order of their times"),
        ([(0, -1)], {}, "fewer than 0 nodes, got -1"),
        ([(0, 1)], {"clouds": []}, "a pool needs clouds out of"),
        ([(0, 1)], {"clouds": [("ibm", 30.0)]}, "a pool needs clouds out of"),
        ([(0, 1)], {"clouds": [("aws", 0.0)]}, "each with seconds above 0"),
        ([(0, 1)], {"boot_s": float("nan")}, "boot_s must be a number of seconds"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(agents, changes, options, words):
    with pytest.raises(ProgramError, match=words):
        pool_of(agents, *changes, **options)
