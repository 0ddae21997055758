"""Schedules of a pipeline: their bubbles, what they hold, and what they ask for."""

from __future__ import annotations

import pytest

from drivetrain_core._errors import PlanError
from drivetrain_parallel.cost.schedules import (
    SCHEDULES,
    bubble,
    check_schedule,
    held_micro_batches,
    owner,
)
from drivetrain_parallel.cost.stages import blocks_of_stages, holdings

# torch's names, as its own orders are made by.
TORCH = {
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv_zero_bubble": "ZBVZeroBubble",
    "dual_pipe_v": "DualPipeV",
}
KINDS = {
    "FORWARD": "F",
    "FULL_BACKWARD": "B",
    "BACKWARD_INPUT": "I",
    "BACKWARD_WEIGHT": "W",
}
EQUAL = (1.0, 1.0, 1.0)
UNEQUAL = ((1.0, 1.5, 0.5), (1.0, 1.2, 0.8), (1.0, 1.3, 1.1))


def needs(kind, stage, batch, last):
    """What must be done before a step of an order."""
    if kind == "W" or (kind, stage) == ("F", 0):
        return []
    if kind == "F":
        return [("F", stage - 1, batch)]
    return [("B", stage + 1, batch) if stage < last else ("F", stage, batch)]


def timed(name, ranks, chunks, micro_batches, times):
    """Runs torch's own order of actions; returns the idle time and what ranks held."""
    visualizer = pytest.importorskip(
        "torch.distributed.pipelining._schedule_visualizer"
    )
    orders = visualizer.get_schedule_ops(TORCH[name], ranks, micro_batches, chunks)
    forward, backward, weights = (time / chunks for time in times)
    costs = {
        "F": forward,
        "B": backward + weights,
        "I": backward,
        "W": weights,
    }
    done, clocks, places = {}, [0.0] * ranks, [0] * ranks
    held, most = [0] * ranks, [0] * ranks
    last = ranks * chunks - 1
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        before = list(places)
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                action = order[places[rank]]
                parts = () if action is None else (action.sub_actions or (action,))
                steps = [
                    (KINDS[p.computation_type.name], p.stage_index, p.microbatch_index)
                    for p in parts
                ]
                needed = [need for step in steps for need in needs(*step, last)]
                if any(need not in done for need in needed):
                    break
                start = max([clocks[rank], *(done[need] for need in needed)])
                clocks[rank] = start + sum(costs[kind] for kind, *_ in steps)
                for kind, stage, batch in steps:
                    held[rank] += {"F": 1, "B": -1, "I": 0, "W": -1}[kind]
                    most[rank] = max(most[rank], held[rank])
                    if kind != "W":
                        key = "F" if kind == "F" else "B"
                        done[key, stage, batch] = clocks[rank]
                places[rank] += 1
        assert places != before, "torch's order cannot go on"
    idle = max(clocks) - micro_batches * sum(times)
    return idle, [number / chunks for number in most]


@pytest.mark.parametrize("times", [EQUAL, *UNEQUAL])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("interleaved_1f1b", 2),
        ("interleaved_1f1b", 3),
        ("looped_bfs", 2),
        ("interleaved_zero_bubble", 2),
        ("interleaved_zero_bubble", 3),
        ("zbv_zero_bubble", 2),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_bubble_is_that_of_torchs_own_order(name, chunks, ranks, times):
    forward, backward, weights = times
    idle, _ = timed(name, ranks, chunks, 4 * ranks, times)
    assert idle == pytest.approx(
        bubble(name, ranks, chunks, forward=forward, backward=backward, weights=weights)
    )


@pytest.mark.parametrize("times", [EQUAL, (1.0, 1.2, 0.8)])
@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("interleaved_1f1b", 3),
        ("looped_bfs", 3),
        ("interleaved_zero_bubble", 2),
        ("interleaved_zero_bubble", 3),
        ("interleaved_zero_bubble", 4),
        ("zbv_zero_bubble", 2),
    ],
)
def test_bubble_of_few_micro_batches_is_that_of_torchs_own_order(
    name, chunks, ranks, times
):
    forward, backward, weights = times
    close = 0.05 if name == "zbv_zero_bubble" and times != EQUAL else 1e-9
    for micro_batches in (1, 2, ranks - 1, ranks, ranks + 1, 2 * ranks - 3):
        idle, _ = timed(name, ranks, chunks, micro_batches, times)
        found = bubble(
            name,
            ranks,
            chunks,
            micro_batches=micro_batches,
            forward=forward,
            backward=backward,
            weights=weights,
        )
        assert found == pytest.approx(idle, rel=close), micro_batches


@pytest.mark.parametrize("ranks", [2, 4])
def test_bubble_of_dual_pipe_is_exact_for_equal_times_and_close_for_others(ranks):
    assert timed("dual_pipe_v", ranks, 2, 4 * ranks, EQUAL)[0] == bubble(
        "dual_pipe_v", ranks, 2
    )
    for times in UNEQUAL:
        forward, backward, weights = times
        found = bubble(
            "dual_pipe_v",
            ranks,
            2,
            forward=forward,
            backward=backward,
            weights=weights,
        )
        idle, _ = timed("dual_pipe_v", ranks, 2, 4 * ranks, times)
        assert found == pytest.approx(idle, rel=0.2)


@pytest.mark.parametrize("name", list(TORCH))
@pytest.mark.parametrize("ranks", [2, 4])
def test_held_is_what_torchs_own_order_holds(name, ranks):
    _, held = timed(name, ranks, 2, 4 * ranks, EQUAL)
    predicted = [
        held_micro_batches(name, ranks, 2, 4 * ranks, rank) for rank in range(ranks)
    ]
    assert held == predicted


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0.0), (2, 3.0), (8, 21.0)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_one_stage_a_rank_is_a_micro_batch_for_each_gap(
    name, ranks, expected
):
    assert bubble(name, ranks, 1) == expected


def test_held_of_1f1b_falls_along_the_pipeline_and_ends_with_the_batch():
    assert [held_micro_batches("1f1b", 4, 1, 16, r) for r in range(4)] == [4, 3, 2, 1]
    assert held_micro_batches("1f1b", 4, 1, 2) == 2
    assert held_micro_batches("gpipe", 4, 1, 16, 3) == 16


def test_rules_are_those_of_the_pipeline_itself():
    from drivetrain_parallel.optimizations.schedule import _KINDS
    from drivetrain_parallel.pipeline import schedules as pipeline

    assert list(SCHEDULES) == list(pipeline.SCHEDULES) == list(_KINDS)
    for name in SCHEDULES:
        chunks = pipeline.stages_per_rank(name)
        for ranks in (1, 2, 3, 4):
            stages = ranks * chunks
            assert [owner(name, s, ranks) for s in range(stages)] == [
                pipeline.stage_owner(name, s, ranks) for s in range(stages)
            ]
            for number in range(1, 14):
                refused = []
                for check in (
                    lambda n=number, r=ranks, c=chunks, k=name: check_schedule(
                        k, r, c, n
                    ),
                    lambda n=number, r=ranks, s=stages, k=name: (
                        pipeline.check_micro_batches(k, n, num_ranks=r, num_stages=s)
                    ),
                ):
                    try:
                        check()
                    except PlanError:
                        refused.append(True)
                    else:
                        refused.append(False)
                assert refused[0] == refused[1], (name, ranks, number)


@pytest.mark.parametrize(
    ("name", "chunks", "micro_batches", "words"),
    [
        ("1f1b", 2, 8, "exactly 1 stages a rank, got 2"),
        ("zbv_zero_bubble", 1, 8, "exactly 2 stages a rank, got 1"),
        ("1f1b", 1, 3, "over 4 stages needs as many micro-batches"),
        ("interleaved_1f1b", 2, 9, "which do not divide 9"),
    ],
)
def test_schedule_that_cannot_run_says_what_would(name, chunks, micro_batches, words):
    with pytest.raises(PlanError, match=words) as caught:
        check_schedule(name, 4, chunks, micro_batches)
    assert caught.value.fix


def test_blocks_make_up_for_a_heavy_end():
    assert blocks_of_stages(16, 4) == (4, 4, 4, 4)
    assert blocks_of_stages(14, 4, after=2.0) == (4, 4, 4, 2)
    assert blocks_of_stages(5, 2) == (3, 2)
    assert sum(blocks_of_stages(33, 5, before=0.3, after=1.7)) == 33


@pytest.mark.parametrize(
    ("blocks", "stages", "even", "words"),
    [(3, 4, False, "3 blocks do not fill 4 stages"), (10, 4, True, "do not divide")],
)
def test_blocks_that_do_not_spread_are_refused(blocks, stages, even, words):
    with pytest.raises(PlanError, match=words):
        blocks_of_stages(blocks, stages, even=even)


def test_first_rank_of_a_v_holds_both_ends():
    first, *others = holdings("dual_pipe_v", 8, 4, 2)
    assert (first.is_first, first.is_last) == (True, True)
    assert not any(h.is_first or h.is_last for h in others)
    assert holdings("1f1b", 8, 4, 1)[-1].is_last


def test_schedule_without_a_cost_is_refused():
    with pytest.raises(ValueError, match="mine is not known"):
        bubble("mine", 4, 1)
    with pytest.raises(ValueError, match="mine holds is not known"):
        held_micro_batches("mine", 4, 1, 8)
