"""WSAM with a gradient scaler: the same update, and steps that are skipped whole."""

import copy

import pytest
import torch

from drivetrain_optim._errors import StepOrderError
from drivetrain_optim.wsam._wsam import WSAM

MODES = [
    {},
    {"decouple": False},
    {"adaptive": True},
    {"max_grad_norm": 0.1},
    {"every_k": 2},
]
FORMS = ["block", "two steps"]


def start():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    )


def make(model, **options):
    base = torch.optim.AdamW(model.parameters(), lr=0.01)
    return WSAM(base, model=model, rho=0.5, **options)


def loss_of(model, step):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    return model(x).square().mean()


def scaled_step(model, wsam, scaler, step, form="block", factors=(1.0, 1.0)):
    """One step as in torch's AMP examples; factors spoil the losses of the passes."""
    wsam.zero_grad()
    scaler.scale(loss_of(model, step) * factors[0]).backward()
    if not wsam.needs_second_pass:
        scaler.step(wsam)
    elif form == "block":
        with wsam.perturb(scaler=scaler):
            scaler.scale(loss_of(model, step) * factors[1]).backward()
        scaler.step(wsam)
    else:
        wsam.first_step(scaler=scaler)
        scaler.scale(loss_of(model, step) * factors[1]).backward()
        wsam.second_step()
    scaler.update()


def plain_step(model, wsam, step):
    wsam.zero_grad()
    loss_of(model, step).backward()
    if wsam.needs_second_pass:
        with wsam.perturb():
            loss_of(model, step).backward()
    wsam.step()


def same(one, other):
    return all(map(torch.equal, one.parameters(), other.parameters()))


def scaler_of(scale=2.0**10, **options):
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_scaled_update_equals_the_plain_one(mode, form):
    model, twin = start(), start()
    wsam, plain = make(model, **mode), make(twin, **mode)
    scaler = scaler_of(growth_interval=2)
    for step in range(5):
        scaled_step(model, wsam, scaler, step, form)
        plain_step(twin, plain, step)
        assert same(model, twin), "powers of two change no bit"
    assert scaler.get_scale() > 2.0**10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spoiled", [0, 1])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_overflow_in_either_pass_skips_the_step(mode, value, spoiled, form):
    model, twin = start(), start()
    wsam, plain = make(model, **mode), make(twin, **mode)
    scaler = scaler_of()
    factors = [1.0, 1.0]
    factors[spoiled] = value
    if "every_k" in mode:  # so that the pass that fails has a direction to keep
        for step in range(2):
            scaled_step(model, wsam, scaler, step, form)
            plain_step(twin, plain, step)
    state = copy.deepcopy(wsam.state_dict())
    scale = scaler.get_scale()
    for _ in range(2):
        scaled_step(model, wsam, scaler, 7, form, factors)
        assert same(model, twin)
    assert scaler.get_scale() == scale / 4
    after = wsam.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for key, tensors in state["state"].items():
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(tensors[name], after["state"][key][name])
    for step in range(2, 5):
        scaled_step(model, wsam, scaler, step, form)
        plain_step(twin, plain, step)
        assert same(model, twin)


def test_wsam_overflow_in_the_first_pass_perturbs_nothing():
    model = start()
    wsam, scaler = make(model), scaler_of()
    before = [p.detach().clone() for p in model.parameters()]
    (scaler.scale(loss_of(model, 0)) * float("inf")).backward()
    with wsam.perturb(scaler=scaler):
        assert all(map(torch.equal, model.parameters(), before))


def test_wsam_gradients_may_be_unscaled_and_clipped_before_the_step():
    model, twin = start(), start()
    wsam, plain = make(model), make(twin)
    scaler = scaler_of()
    for step in range(3):
        wsam.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        with wsam.perturb(scaler=scaler):
            scaler.scale(loss_of(model, step)).backward()
        scaler.unscale_(wsam)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(wsam)
        scaler.update()
        plain.zero_grad()
        loss_of(twin, step).backward()
        with plain.perturb():
            loss_of(twin, step).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
        plain.step()
        assert same(model, twin)


def test_wsam_unscaling_before_the_first_pass_is_refused():
    model = start()
    wsam, scaler = make(model), scaler_of()
    scaler.scale(loss_of(model, 0)).backward()
    scaler.unscale_(wsam)
    with pytest.raises(StepOrderError, match="one in the stage UNSCALED"):
        wsam.first_step(scaler=scaler)


def test_wsam_pass_that_failed_can_be_repeated_under_the_scaler():
    model, twin = start(), start()
    wsam, plain = make(model), make(twin)
    scaler = scaler_of()
    for _ in range(3):
        scaler.scale(loss_of(model, 0)).backward()
        with pytest.raises(KeyError), wsam.perturb(scaler=scaler):
            raise KeyError
    scaled_step(model, wsam, scaler, 0)
    plain_step(twin, plain, 0)
    assert same(model, twin)


def test_wsam_disabled_scaler_changes_nothing():
    model, twin = start(), start()
    wsam, plain = make(model), make(twin)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step, form in enumerate(FORMS):
        scaled_step(model, wsam, scaler, step, form)
        plain_step(twin, plain, step)
        assert same(model, twin)
