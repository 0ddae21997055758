"""What the main job decides: sizes, what workers take of a plan, and what was kept."""

import math
import random

import pytest
import torch

from drivetrain.quickstart._carry import carry_over, refusal
from drivetrain.quickstart._channel import last_line
from drivetrain.quickstart._kill_report import Count, LossGap, loss_gap
from drivetrain.quickstart._size import (
    MOST_STEPS,
    save_every,
    step_of_kill,
    steps_of_job,
    steps_of_pair,
    steps_of_turn,
)
from drivetrain.quickstart._speed_up import SpeedUp, speed_up
from drivetrain.quickstart._verdict import fast, hard_to_kill, mfu
from drivetrain_core import Choice, accelerate
from drivetrain_testing.programs import adamw, mse, small


@pytest.mark.parametrize("step_s", [1e-4, 0.02, 0.7, 2.0, 5.0])
@pytest.mark.parametrize("start_s", [5.0, 30.0])
def test_parts_fit_into_their_limits(step_s, start_s):
    spent_s = 2 * start_s + 2 * step_s
    num = steps_of_pair(2 * step_s, limit_s=120.0, made=1, spent_s=spent_s)
    assert 1 + num <= MOST_STEPS
    assert spent_s + num * 2 * step_s <= 120.0
    job = steps_of_job(1 + num, step_s, limit_s=150.0, start_s=start_s)
    assert job <= 1 + num
    # Two workers on the cores of one, each of which applies the whole update.
    assert 2.5 * start_s + job * 1.5 * step_s <= 150.0


def test_slow_steps_leave_some_before_and_after_the_kill():
    num = 1 + steps_of_pair(150.0, limit_s=120.0, made=1, spent_s=300.0)
    assert num == 4
    assert steps_of_job(num, 60.0, limit_s=150.0, start_s=200.0) == 4
    assert 1 < step_of_kill(4) < 4


@pytest.mark.parametrize("num_steps", [4, 5, 100, MOST_STEPS])
def test_worker_dies_in_the_middle_and_after_a_checkpoint(num_steps):
    kill = step_of_kill(num_steps)
    assert abs(kill - num_steps / 2) <= 1
    assert save_every(num_steps) < kill
    assert num_steps // save_every(num_steps) >= 4


@pytest.mark.parametrize(("step_s", "num"), [(1e-5, 20), (0.5, 3), (30.0, 1)])
def test_turns_are_neither_long_nor_many(step_s, num):
    assert steps_of_turn(step_s) == num


def test_speed_up_is_that_of_turns_side_by_side():
    """A machine that is slow now and then is so for both."""
    draw = random.Random(1)
    pace = [draw.uniform(1.0, 1.1) for _ in range(12)]
    program = [[2.0 * one * draw.uniform(0.99, 1.01) for _ in range(5)] for one in pace]
    plan = [[one * draw.uniform(0.99, 1.01) for _ in range(5)] for one in pace]
    found = speed_up(program, plan)
    assert found.ratio == pytest.approx(2.0, rel=0.03)
    assert 0.0 < found.half_width < 0.1
    assert speed_up(program, plan) == found


@pytest.mark.parametrize(
    ("speed", "is_kept"),
    [
        (None, True),
        (SpeedUp(1.3, 0.02), True),
        (SpeedUp(0.99, 0.02), True),
        (SpeedUp(0.97, 0.02), False),
    ],
)
def test_plan_may_be_slower_by_no_more_than_is_not_known(speed, is_kept):
    assert fast(speed).is_kept is is_kept


GOOD = {
    "num_steps": 10,
    "steps_lost": 0,
    "steps_again": 1,
    "samples_lost": 0,
    "samples_repeated": 0,
    "pause_s": 0.2,
    "step_s": 0.1,
}


def judged(*, exit_code=0, has_killed=True, gap=(0.01, 0.01, 0.1, 1.0), **counted):
    return hard_to_kill(
        exit_code,
        Count(**{**GOOD, **counted}),
        LossGap(*gap),
        num_steps=10,
        has_killed=has_killed,
    )


def test_training_that_has_lost_nothing_is_hard_to_kill():
    assert all(promise.is_kept for promise in judged())


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ({"exit_code": 1}, "came to its end"),
        ({"has_killed": False}, "came to its end"),
        ({"pause_s": None}, "came to its end"),
        ({"steps_lost": 1}, "no step"),
        ({"num_steps": 9}, "no step"),
        ({"samples_lost": 1}, "every sample"),
        ({"samples_repeated": 1}, "every sample"),
        ({"gap": (0.01, 0.03, 0.03, 1.0)}, "losses"),
    ],
)
def test_each_loss_breaks_its_promise(fault, broken):
    (promise,) = [promise for promise in judged(**fault) if not promise.is_kept]
    assert broken in promise.what


@pytest.mark.parametrize(("before", "is_said"), [(0.01, False), (0.2, True)])
def test_runs_that_part_without_a_kill_are_said_to_prove_little(before, is_said):
    (losses,) = [
        one for one in judged(gap=(before, 0.01, 0.1, 1.0)) if "losses" in one.what
    ]
    assert losses.is_kept
    assert ("says little" in losses.because) is is_said


def test_share_of_a_peak_that_was_none_is_not_told():
    assert mfu(100, 1.0, 200.0) == 0.5
    assert mfu(100, 1.0, 58.3) is None
    assert mfu(None, 1.0, 200.0) is None
    assert mfu(100, 1.0, None) is None


def test_losses_that_are_no_number_in_both_runs_are_alike():
    nan = math.nan
    assert loss_gap([3.0, nan, nan], [3.0, nan, nan], kill_step=2)[:3] == (
        0.0,
        0.0,
        0.0,
    )
    apart = loss_gap([3.0, 2.0, 1.0], [3.0, nan, nan], kill_step=2)
    assert not apart.after <= 1e9


def test_halves_of_a_batch_are_normalized_by_themselves_and_it_is_named():
    carried = carry_over([], num_workers=2, num_threads=1, has_batch_norm=True)
    ((what, instead),) = carried.left_out
    assert "BatchNorm" in what
    assert "own part" in instead


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("", "nothing"),
        ("killed\n", "killed"),
        (
            'File "/a/core.py", line 7, in run\n  File "/b/train.py", line 3\nSyntaxError: x',
            "SyntaxError: x, /b/train.py:3",
        ),
    ],
)
def test_last_words_of_a_process_say_where(tmp_path, log, last):
    (tmp_path / "log").write_text(log)
    assert last_line(tmp_path / "log") == last


def test_what_workers_do_not_take_of_a_plan_is_named():
    plan = [
        Choice("cpu_threads", {"num": 4}),
        Choice("precision", {"dtype": "bf16_autocast"}),
        Choice("compile", {"scope": "block"}),
        Choice("micro_batch", {"num": 3}),
        Choice("data_loading", {"workers": 2}),
    ]
    carried = carry_over(plan, num_workers=2, num_threads=1)
    assert [one.name for one in carried.choices] == ["precision", "compile"]
    assert carried.num_passes == 1
    assert [what.split("(")[0] for what, _ in carried.left_out] == [
        "cpu_threads",
        "micro_batch",
        "data_loading",
    ]
    same = carry_over(plan[:1], num_workers=2, num_threads=4)
    assert (same.choices, same.left_out) == (tuple(plan[:1]), ())


@pytest.mark.parametrize(("num_samples", "refused"), [(1, True), (2, False)])
def test_two_workers_share_no_batch_of_one_sample(num_samples, refused):
    batch = (torch.randn(num_samples, 3), torch.randn(num_samples, 1))
    program = accelerate(small, adamw, [batch], mse, strategy=[], progress=False)
    said = refusal("train.py", program)
    assert (said or "").startswith("two workers share a batch") is refused
