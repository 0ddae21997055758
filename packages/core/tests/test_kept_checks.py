"""A check is kept for the program that it was made for, and for no other."""

from __future__ import annotations

import functools
import itertools

import pytest
from rehearsed_programs import layered, pairs, sgd, squared, summed
from torch import nn
from torch.nn import functional

from drivetrain_core import PlanError, accelerate


def test_a_program_that_starts_again_does_not_pay_for_the_check(tmp_path):
    def passes(loss=squared, strategy=(("micro_batch", 2),), cache=tmp_path, data=None):
        # What a list would count is put back.
        model, passed = layered(), itertools.count()
        model.register_forward_hook(lambda *_: (next(passed), None)[1])
        accelerated = accelerate(
            model, sgd, data or pairs(), loss, strategy=list(strategy), cache=cache
        )
        assert "loss_rel" in accelerated.plan.guard
        return next(passed)

    first = passes()
    assert first > 1
    assert passes() == 0
    assert passes(strategy=[("micro_batch", 4)]) > 0
    assert passes(loss=lambda o, b: (o - b[1]).abs().mean()) > 0

    def scaled(factor):
        return lambda o, b: factor * squared(o, b)

    assert passes(loss=scaled(1.0)) > 0
    assert passes(loss=scaled(1.0)) == 0
    assert passes(loss=scaled(2.0)) > 0
    assert passes(cache=False) == first
    assert passes(data=pairs(seed=1)) > 0
    assert passes(data=pairs(seed=1)) == 0
    found = []
    for flag in (True, True, False):
        flagged = layered()
        flagged.is_flagged = flag
        passed = itertools.count()
        hook = flagged.register_forward_hook(
            lambda *_, passed=passed: (next(passed), None)[1]
        )
        accelerate(
            flagged,
            sgd,
            [batch[0] for batch in pairs()],
            nn.MSELoss(),
            strategy=["activation_checkpoint"],
            cache=tmp_path,
        ).close()
        hook.remove()
        found.append(bool(next(passed)))
    assert found == [True, False, True]
    for text in ("{", "[1]", "5", "null", "[" * 100_000):
        for record in (tmp_path / "checked").iterdir():
            record.write_text(text)
        assert passes() == first


REDUCTION = "mean"


class Reducing:
    def __init__(self, reduction):
        self.reduction = reduction

    def loss(self, output, batch):
        return functional.mse_loss(output, batch[1], reduction=self.reduction)


def by_a_global(output, batch):
    return functional.mse_loss(output, batch[1], reduction=REDUCTION)


def through_another(output, batch):
    return by_a_global(output, batch)


def by_a_default(output, batch, *, reduction):
    return functional.mse_loss(output, batch[1], reduction=reduction)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: by_a_global,
        lambda _: through_another,
        lambda reduction: Reducing(reduction).loss,
        lambda reduction: functools.partial(by_a_default, reduction=reduction),
        lambda reduction: lambda o, b, r=reduction: by_a_default(o, b, reduction=r),
    ],
    ids=["global", "helper", "method", "partial", "default"],
)
def test_what_a_loss_goes_by_is_part_of_what_was_checked(tmp_path, monkeypatch, make):
    def run(reduction):
        monkeypatch.setitem(globals(), "REDUCTION", reduction)
        return accelerate(
            layered(),
            sgd,
            pairs(),
            make(reduction),
            strategy=[("micro_batch", 2)],
            cache=tmp_path,
        )

    run("mean")
    with pytest.raises(PlanError, match="none of the program's"):
        run("sum")


def test_hooks_and_tables_of_a_model_are_part_of_what_was_checked(tmp_path):
    def run(model):
        plan = [("micro_batch", 2)]
        accelerate(model, sgd, pairs(), squared, strategy=plan, cache=tmp_path)

    def numbers():
        return len(list((tmp_path / "checked").iterdir()))

    run(layered())
    hooked, scaled = layered(), layered()
    hooked.register_forward_hook(lambda _m, _i, output: output * 2)
    scaled.scales = {"head": 2.0}
    for number, model in enumerate((hooked, scaled)):
        run(model)
        assert numbers() == number + 2


def test_a_check_that_fails_is_not_kept(tmp_path):
    for _ in range(2):
        with pytest.raises(PlanError):
            accelerate(
                layered(),
                sgd,
                pairs(),
                summed,
                strategy=[("micro_batch", 2)],
                cache=tmp_path,
            )
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "register", ["register_hook", "register_post_accumulate_grad_hook"]
)
def test_a_hook_on_a_parameter_is_a_reason_to_check_again(tmp_path, register):
    def check(hook=None):
        model = layered()
        if hook is not None:
            getattr(model[0][0].weight, register)(hook)
        strategy = [("micro_batch", 2)]
        accelerate(model, sgd, pairs(), squared, strategy=strategy, cache=tmp_path)

    def clip(given):
        if register == "register_hook":
            return given.clamp(-50.0, 50.0)
        given.grad.clamp_(-50.0, 50.0)
        return None

    check()
    with pytest.raises(PlanError, match="does not grow with the loss"):
        check(clip)


def test_a_hook_of_an_optimizer_is_a_reason_to_check_again(tmp_path):
    def passes(hook):
        model, passed = layered(), itertools.count()
        model.register_forward_hook(lambda *_: (next(passed), None)[1])
        optimizer = sgd(model.parameters())
        optimizer.register_step_pre_hook(hook)
        strategy = [("micro_batch", 2)]
        accelerate(
            model, optimizer, pairs(), squared, strategy=strategy, cache=tmp_path
        )
        return next(passed)

    assert passes(lambda *_: None) > 0
    assert passes(lambda *_: print(end="")) > 0
