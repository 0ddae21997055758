"""Learning rates that follow the batch, as their rules say."""

import pytest
import torch

from drivetrain_core import ProgramError
from drivetrain_elastic import BatchScaling
from drivetrain_elastic._training._batch_scaling import ScaledRate


@pytest.mark.parametrize(
    ("rule", "more", "factor"),
    [
        ("linear", {}, 4.0),
        ("sqrt", {}, 2.0),
        ("lamb", {"total_samples": 1000}, 2.0),
    ],
)
def test_factor_is_what_the_rule_says(rule, more, factor):
    scaling = BatchScaling(rule=rule, reference_batch=8, **more)
    assert scaling.factor(32) == factor
    assert scaling.factor(8) == 1.0


def test_new_factor_is_approached_in_a_straight_line():
    rate = ScaledRate(BatchScaling(rule="linear", reference_batch=10, warmup=100))
    assert [rate.factor(10, read) for read in (0, 10)] == [1.0, 1.0]
    assert [rate.factor(20, read) for read in (20, 70, 120, 140)] == [
        1.0,
        1.5,
        2.0,
        2.0,
    ]
    # A change in the middle of a warm-up begins where it is.
    assert rate.factor(40, 140) == 2.0
    assert rate.factor(40, 190) == 3.0
    assert rate.factor(10, 190) == 3.0


def test_lamb_warms_up_for_a_part_of_the_training_that_grows_with_the_batch():
    scaling = BatchScaling(rule="lamb", reference_batch=512, total_samples=320_000)
    assert scaling.warmup_for(512) == pytest.approx(1000)
    assert scaling.warmup_for(32_768) == pytest.approx(64_000)


def test_warm_up_goes_on_from_its_state():
    scaling = BatchScaling(rule="sqrt", reference_batch=1, warmup=10)
    first, second = ScaledRate(scaling), ScaledRate(scaling)
    first.factor(1, 0)
    first.factor(4, 20)
    second.load_state_dict(first.state_dict())
    assert second.factor(4, 25) == first.factor(4, 25) == 1.5


def test_step_uses_the_scaled_rate_and_leaves_the_users_alone():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    rate = ScaledRate(BatchScaling(rule="linear", reference_batch=2))
    rate.step(optimizer, 4, 0)
    assert weight.item() == -1.0
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rule": "cubic"}, "one of linear, sqrt, lamb, got 'cubic'"),
        ({"reference_batch": 0}, "at least 1 and warmup at least 0, got 0 and 0"),
        ({"warmup": -1}, "got 8 and -1"),
        ({"rule": "lamb"}, "total_samples belongs to the rule 'lamb', got 0"),
        ({"total_samples": 5}, "got 5 with 'linear'"),
    ],
)
def test_scaling_says_what_is_wrong(changes, says):
    with pytest.raises(ProgramError, match=says):
        BatchScaling(**{"rule": "linear", "reference_batch": 8, **changes})
