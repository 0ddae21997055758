"""Hosts, flaws and rings, out of matrices that were made up."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_fabric.topology import (
    LinkMatrix,
    TopologyError,
    find_flaws,
    find_hosts,
    find_levels,
    ring_cost,
    ring_order,
)
from drivetrain_fabric.topology._json import from_plain, to_plain
from drivetrain_fabric.topology._tournament import tournament

NEAR, FAR = (2e-5, 4e9), (1e-4, 1e9)


def links(hosts, *, near=NEAR, far=FAR, speed=None, noise=0.0, ranks=()):
    """Returns a matrix; `speed` multiplies that of some (sender, receiver)."""
    rows = sorted(row for host in hosts for row in host)
    host_of = {row: i for i, host in enumerate(hosts) for row in host}
    draw = random.Random(0)

    def one(a, b, which):
        if a == b:
            return 0.0
        value = (near if host_of[a] == host_of[b] else far)[which]
        value *= 1 + noise * draw.uniform(-1, 1)
        return value * (speed or {}).get((a, b), 1) if which else value

    delay_s, bytes_per_s = (
        tuple(tuple(one(a, b, which) for b in rows) for a in rows) for which in (0, 1)
    )
    return LinkMatrix(delay_s=delay_s, bytes_per_s=bytes_per_s, ranks=ranks)


def both_ways(*pairs, factor):
    return {ends: factor for a, b in pairs for ends in ((a, b), (b, a))}


def shuffled(sizes, seed):
    ranks = list(range(sum(sizes)))
    random.Random(seed).shuffle(ranks)
    ends = list(itertools.accumulate(sizes, initial=0))
    groups = (ranks[a:b] for a, b in itertools.pairwise(ends))
    return tuple(sorted(tuple(sorted(group)) for group in groups))


@pytest.mark.parametrize(
    ("delay_s", "bytes_per_s", "message"),
    [
        ((), (), "delay_s must have one row at least"),
        (((0.0,),), (), "bytes_per_s must have 1 rows, got 0"),
        (((0.0, 1.0),), ((0.0,),), r"delay_s\[0\] must have 1 numbers, got 2"),
        (((-1.0,),), ((0.0,),), r"delay_s\[0\]\[0\] must be 0 or more, got -1"),
        (((float("nan"),),), ((0.0,),), "got nan"),
        (
            ((0.0, 1.0), (1.0, 0.0)),
            ((0.0, 1.0), (0.0, 0.0)),
            r"\[1\]\[0\] must be more",
        ),
    ],
)
def test_matrix_names_what_is_wrong(delay_s, bytes_per_s, message):
    with pytest.raises(TopologyError, match=message):
        LinkMatrix(delay_s=delay_s, bytes_per_s=bytes_per_s)


@pytest.mark.parametrize("ranks", [(0,), (0, 0)])
def test_matrix_wants_a_rank_for_each_row(ranks):
    with pytest.raises(TopologyError, match="ranks must be 2 different ones"):
        links([[0], [1]], ranks=ranks)


def test_matrix_survives_json():
    matrix = links([[0, 1], [2]], ranks=(4, 7, 9))
    assert from_plain(LinkMatrix, json.loads(json.dumps(to_plain(matrix)))) == matrix


@pytest.mark.parametrize("num_players", range(1, 12))
def test_tournament_lets_all_meet_once_in_disjoint_pairs(num_players):
    rounds = tournament(num_players)
    assert len(rounds) == num_players - 1 + num_players % 2
    for pairs in rounds:
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players))
    met = sorted(pair for pairs in rounds for pair in pairs)
    assert met == list(itertools.combinations(range(num_players), 2))


@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2, 2), (8, 8, 8), (5, 2, 3), (4, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_hosts_are_found_though_ranks_are_shuffled(sizes, seed):
    hosts = shuffled(sizes, seed)
    assert find_hosts(links(hosts, noise=0.1)) == hosts


@pytest.mark.parametrize("far", [(2e-5, 4e8), (2e-4, 4e9)], ids=["slower", "later"])
def test_hosts_are_found_by_speed_or_delay_alone(far):
    assert find_hosts(links([[0, 2], [1, 3]], far=far)) == ((0, 2), (1, 3))


def test_hosts_are_found_by_their_ranks():
    assert find_hosts(links([[0, 2], [1, 3]], ranks=(9, 8, 7, 6))) == ((6, 8), (7, 9))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_ranks_that_are_all_alike_are_one_host(num_ranks):
    hosts = (tuple(range(num_ranks)),)
    assert find_hosts(links(hosts, noise=0.1)) == hosts
    assert find_levels(links(hosts)) == ()


def test_slow_link_does_not_split_a_host():
    slow = both_ways((0, 1), factor=0.1)
    assert find_hosts(links([[0, 1, 2], [3, 4, 5]], speed=slow)) == (
        (0, 1, 2),
        (3, 4, 5),
    )


def test_levels_are_hosts_and_then_racks():
    racks = both_ways(*itertools.product(range(4), range(4, 8)), factor=0.1)
    matrix = links([[0, 1], [2, 3], [4, 5], [6, 7]], speed=racks)
    assert find_levels(matrix) == (
        ((0, 1), (2, 3), (4, 5), (6, 7)),
        ((0, 1, 2, 3), (4, 5, 6, 7)),
    )


@pytest.mark.parametrize("min_gap", [1.0, 0.0, float("nan")])
def test_levels_refuse_a_gap_that_is_none(min_gap):
    with pytest.raises(TopologyError, match="min_gap must be more than 1"):
        find_levels(links([[0], [1]]), min_gap=min_gap)


def test_flaws_are_none_in_a_sound_cluster():
    assert find_flaws(links([[0, 1], [2, 3], [4, 5]], noise=0.1)) == ()


def test_slow_link_is_named_once_for_both_directions():
    slow = both_ways((1, 4), factor=0.2)
    (flaw,) = find_flaws(links([[0, 1], [2, 3], [4, 5]], speed=slow))
    assert (flaw.kind, flaw.ranks, flaw.is_mutual) == ("slow", (1, 4), True)
    assert flaw.factor == pytest.approx(5)
    assert flaw.message == (
        "rank 1 and rank 4: 5.0x slower than others between hosts (200 MB/s, not 1 GB/s)"
    )


def test_slow_link_within_a_host_is_compared_with_its_like():
    slow = both_ways((0, 1), factor=0.25)  # as fast as links between hosts
    (flaw,) = find_flaws(links([[0, 1, 2, 3], [4, 5, 6, 7]], speed=slow))
    assert flaw.ranks == (0, 1)
    assert "within hosts" in flaw.message


def test_late_link_is_slow():
    matrix = links([[0, 1], [2, 3]])
    delays = [list(row) for row in matrix.delay_s]
    delays[0][3] = delays[3][0] = 1e-3
    late = LinkMatrix(delay_s=tuple(map(tuple, delays)), bytes_per_s=matrix.bytes_per_s)
    (flaw,) = find_flaws(late)
    assert flaw.ranks == (0, 3)
    assert "1 ms, not 100 us" in flaw.message


def test_lopsided_link_names_the_slow_direction():
    (flaw,) = find_flaws(links([[0, 1], [2, 3], [4, 5]], speed={(4, 1): 0.5}))
    assert (flaw.kind, flaw.ranks, flaw.is_mutual) == ("lopsided", (4, 1), False)
    assert flaw.factor == pytest.approx(2)


def test_slow_rank_is_named_instead_of_all_its_links():
    pairs = [(5, other) for other in range(12) if other != 5]
    slow = both_ways(*pairs, factor=0.2)
    hosts = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    (flaw,) = [
        flaw
        for flaw in find_flaws(links(hosts, speed=slow), hosts=hosts)
        if "between" in flaw.message
    ]
    assert flaw.ranks == (5,)
    assert flaw.message == "rank 5: its links between hosts are 5.0x slower"


def test_flaws_want_links_to_compare_with():
    assert find_flaws(links([[0], [1]], speed=both_ways((0, 1), factor=0.01))) == ()


@pytest.mark.parametrize("hosts", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2, 3]], []])
def test_hosts_that_do_not_fit_are_refused(hosts):
    with pytest.raises(
        TopologyError, match=r"hosts must hold each of \[0, 1, 2\] once"
    ):
        find_flaws(links([[0], [1], [2]]), hosts=hosts)


@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_flaws_refuse_a_factor_that_is_none(factor):
    with pytest.raises(TopologyError, match="factor must be more than 1"):
        find_flaws(links([[0], [1]]), factor=factor)


def is_contiguous(ring, hosts):
    host_of = {rank: i for i, host in enumerate(hosts) for rank in host}
    changes = sum(host_of[a] != host_of[b] for a, b in itertools.pairwise(ring))
    return changes == len(hosts) - 1


@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2), (3, 5, 4), (8, 8, 8), (1,) * 12])
def test_ring_keeps_hosts_together(sizes):
    hosts = shuffled(sizes, 7)
    ring = ring_order(links(hosts, noise=0.1), hosts=hosts)
    assert sorted(ring) == list(range(sum(sizes)))
    assert is_contiguous(ring, hosts)
    assert ring[0] in hosts[0]


def test_ring_of_ranks_that_are_all_alike_counts_up():
    assert ring_order(links([range(7)])) == tuple(range(7))
    assert ring_order(links([[0]])) == (0,)


@pytest.mark.parametrize("num_hosts", [4, 6, 8, 9, 16])
def test_ring_avoids_a_slow_link(num_hosts):
    hosts = [[host] for host in range(num_hosts)]
    slow = both_ways((0, 1), (2, 3), factor=0.1)
    matrix = links(hosts, speed=slow)
    ring = ring_order(matrix, hosts=hosts)
    crossings = {
        frozenset(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)
    }
    assert frozenset({0, 1}) not in crossings
    assert frozenset({2, 3}) not in crossings
    assert ring_cost(matrix, ring) < ring_cost(matrix, range(num_hosts))


def test_ring_leaves_a_host_through_the_rank_with_the_fast_link():
    hosts = [[0, 1, 2], [3, 4, 5]]
    fast = both_ways((1, 4), (2, 5), factor=3.0)
    ring = ring_order(links(hosts, speed=fast), hosts=hosts)
    crossings = {
        frozenset(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)
    }
    assert {frozenset({1, 4}), frozenset({2, 5})} <= crossings


def random_links(size, seed):
    draw = random.Random(seed)
    rows = range(size)
    speeds = tuple(
        tuple(draw.uniform(1e8, 1e10) if a != b else 0.0 for b in rows) for a in rows
    )
    delays = tuple(tuple(1e-5 * (a != b) for b in rows) for a in rows)
    return LinkMatrix(delay_s=delays, bytes_per_s=speeds)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [3, 5, 7])
def test_small_ring_is_the_best_of_all(size, seed):
    matrix = random_links(size, seed)
    hosts = [[row] for row in range(size)]
    best = min(ring_cost(matrix, p) for p in itertools.permutations(range(size)))
    assert ring_cost(matrix, ring_order(matrix, hosts=hosts)) == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(9, 20), seed=st.integers(0, 1000))
def test_large_ring_cannot_be_improved_by_one_turn(size, seed):
    matrix = random_links(size, seed)
    hosts = [[row] for row in range(size)]
    ring = ring_order(matrix, hosts=hosts)
    cost = ring_cost(matrix, ring)
    assert ring == ring_order(matrix, hosts=hosts)
    for i, j in itertools.combinations(range(size), 2):
        turned = [*ring[:i], *ring[i : j + 1][::-1], *ring[j + 1 :]]
        assert ring_cost(matrix, turned) >= cost or ring_cost(
            matrix, turned
        ) == pytest.approx(cost)


def test_ring_depends_on_the_length_of_messages():
    rows = range(4)
    # What is fast for long messages is late for short ones.
    delays = tuple(
        tuple((1e-3 if {a, b} in ({0, 1}, {2, 3}) else 1e-5) * (a != b) for b in rows)
        for a in rows
    )
    speeds = tuple(
        tuple((1e10 if {a, b} in ({0, 1}, {2, 3}) else 1e9) * (a != b) for b in rows)
        for a in rows
    )
    matrix = LinkMatrix(delay_s=delays, bytes_per_s=speeds)
    hosts = [[row] for row in rows]
    assert ring_order(matrix, hosts=hosts, size_bytes=1) == (0, 2, 1, 3)
    long = ring_order(matrix, hosts=hosts, size_bytes=1 << 30)
    assert {frozenset(long[:2]), frozenset(long[2:])} == {
        frozenset({0, 1}),
        frozenset({2, 3}),
    }


def test_ring_refuses_a_negative_length_and_a_partial_order():
    with pytest.raises(TopologyError, match="size_bytes must be 0 or more"):
        ring_order(links([[0], [1]]), size_bytes=-1)
    with pytest.raises(TopologyError, match="hosts must hold each of"):
        ring_cost(links([[0], [1]]), [0])
