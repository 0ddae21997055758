"""Every algorithm adds every rank exactly once, whatever the hosts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_comm.algorithms import halving, hierarchical, ring
from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.compiler import Schedule, find_fault
from drivetrain_comm.selection._choice import ALGORITHMS, STOCK, available, steps_of
from drivetrain_comm.selection._load import load_of
from drivetrain_comm.selection._select import load_of_algorithm

NAMES = [name for name in ALGORITHMS if name != STOCK]
HOSTS = [
    [[0, 1]],
    [[0], [1], [2]],
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[0, 2, 4, 6], [1, 3, 5, 7]],
    [[3], [0, 1, 2, 4, 5]],
    [[0, 1], [2, 3], [4, 5], [6, 7], [8]],
]


def programs(name, hosts):
    size = sum(len(ranks) for ranks in hosts)
    whole = [steps_of(name, hosts, rank) for rank in range(size)]
    return [steps for steps, _ in whole], whole[0][1]


def fault(whole, num_chunks):
    owners = [0] * num_chunks
    for rank, steps in enumerate(whole):
        for kind, _, chunk in steps:
            if kind == Kind.FINISH:
                owners[chunk] = rank
    return find_fault(
        Schedule(
            name="",
            collective="all_reduce",
            owners=tuple(owners),
            programs=tuple(map(tuple, whole)),
        )
    )


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("name", NAMES)
def test_algorithm_adds_each_rank_once(name, hosts):
    assert fault(*programs(name, hosts)) is None


@st.composite
def any_hosts(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    ranks = draw(st.permutations(range(sum(sizes))))
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [list(ranks[a:b]) for a, b in pairwise(ends)]


@settings(max_examples=60, deadline=None)
@given(any_hosts(), st.sampled_from(NAMES))
def test_algorithm_adds_each_rank_once_on_any_hosts(hosts, name):
    whole, num_chunks = programs(name, hosts)
    if len(whole) > 1:
        assert fault(whole, num_chunks) is None


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(HOSTS), st.data())
def test_fault_is_found_in_steps_that_were_changed(name, hosts, data):
    whole, num_chunks = programs(name, hosts)
    rank = data.draw(st.sampled_from([r for r, steps in enumerate(whole) if steps]))
    at = data.draw(st.integers(0, len(whole[rank]) - 1))
    change = data.draw(st.sampled_from(["drop", "double", "kind"]))
    steps = list(whole[rank])
    if change == "drop":
        del steps[at]
    elif change == "double":
        steps.insert(at, steps[at])
    else:
        other = {Kind.RECEIVE: Kind.REDUCE, Kind.REDUCE: Kind.RECEIVE}
        if steps[at].kind not in other:
            return
        steps[at] = Step(other[steps[at].kind], *steps[at][1:])
    whole[rank] = steps
    assert fault(whole, num_chunks) is not None


@pytest.mark.parametrize(
    ("name", "link", "hops"),
    [("ring", 1.75, 4), ("direct", 4.0, 2), ("halving", 4.0, 2)],
)
def test_load_of_flat_algorithms_on_two_hosts_of_four(name, link, hops):
    load = load_of_algorithm(name, [[0, 1, 2, 3], [4, 5, 6, 7]])
    assert (load.link, load.hops) == (link, hops)


def test_load_of_hierarchical_is_what_theory_says():
    hosts = [[0, 1, 2, 3], [4, 5, 6, 7]]
    load = load_of_algorithm("hierarchical-direct", hosts)
    assert load.link == pytest.approx(1.0)
    assert load.hops == 2
    four = load_of_algorithm("hierarchical-ring", [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert four.link == pytest.approx(1.5)
    assert four.hops == 6


def test_ring_passes_through_one_host_after_the_other():
    shuffled = [[0, 2, 4, 6], [1, 3, 5, 7]]
    contiguous = [[0, 1, 2, 3], [4, 5, 6, 7]]
    loads = [load_of_algorithm("ring", hosts).link for hosts in (shuffled, contiguous)]
    assert loads[0] == loads[1]
    ranks = range(8)
    naive = load_of([ring.all_reduce(ranks, r, ranks) for r in ranks], 8, shuffled)
    assert naive.link == 4 * loads[0]


@pytest.mark.parametrize(("num_ranks", "num_chunks"), [(1, 1), (2, 2), (7, 4), (8, 8)])
def test_halving_cuts_into_a_power_of_two(num_ranks, num_chunks):
    assert halving.num_chunks(num_ranks) == num_chunks


def test_hierarchical_has_a_share_for_each_rank_of_the_largest_host():
    assert hierarchical.num_shares([[0], [1, 2, 3]]) == 3


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ([[0]], (STOCK,)),
        ([[0, 1]], (STOCK, "direct")),
        ([[0], [1], [2]], (STOCK, "ring", "direct", "halving")),
    ],
)
def test_available_leaves_out_what_would_be_the_same(hosts, names):
    assert available(hosts) == names
