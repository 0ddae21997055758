"""What WSAM refuses: one clear error each, and nothing has changed after it."""

import copy

import pytest
import torch

from drivetrain_optim._errors import (
    HyperparameterError,
    StateDictError,
    StepOrderError,
    UnsupportedTensorError,
)
from drivetrain_optim.checks._options import WSAM_OPTIONS, checked
from drivetrain_optim.wsam._wsam import WSAM


def weights():
    return [torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2)]


def make(params=None, **options):
    params = weights() if params is None else params
    return WSAM(torch.optim.SGD(params, lr=0.1, momentum=0.9), **options), params


def backward(params):
    sum(p.square().sum() for p in params).backward()


def full_step(wsam, params):
    wsam.zero_grad()
    backward(params)
    with wsam.perturb():
        backward(params)
    wsam.step()


@pytest.fixture
def unchanged():
    """Compares weights, state and groups with what they were when it was called."""
    checks = []

    def watch(wsam, params):
        before = copy.deepcopy(wsam.state_dict())
        saved = [p.detach().clone() for p in params]

        def check():
            assert all(map(torch.equal, params, saved))
            after = wsam.state_dict()
            assert after["param_groups"] == before["param_groups"]
            for key, state in before["state"].items():
                for name, value in state.items():
                    assert torch.equal(value, after["state"][key][name])

        checks.append(check)

    yield watch
    assert checks
    for check in checks:
        check()


BAD = [
    ("rho", -0.1, "a finite number >= 0"),
    ("rho", float("nan"), "a finite number >= 0"),
    ("rho", True, "a finite number >= 0"),
    ("gamma", 1.0, r"a number in \[0, 1\)"),
    ("gamma", -0.1, r"a number in \[0, 1\)"),
    ("adaptive", 1, "True or False"),
    ("decouple", None, "True or False"),
    ("eps", 0.0, "a finite number > 0"),
    ("max_grad_norm", 0.0, "a finite number > 0 or None"),
    ("every_k", 0, "an integer >= 1"),
    ("every_k", 1.5, "an integer >= 1"),
    ("every_k", True, "an integer >= 1"),
    ("gradient", "globl", "one of global, local, got 'globl'; nearest: global, local"),
]


@pytest.mark.parametrize(("name", "value", "rule"), BAD)
def test_wsam_option_is_refused_and_groups_stay(name, value, rule):
    base = torch.optim.SGD(weights(), lr=0.1)
    with pytest.raises(HyperparameterError, match=f"^WSAM: {name} must be {rule}"):
        WSAM(base, **{name: value})
    assert "gamma" not in base.param_groups[0]


@pytest.mark.parametrize("name", ["rho", "gamma"])
def test_wsam_option_of_a_group_is_refused(name, unchanged):
    first, second = weights()
    groups = [{"params": [first]}, {"params": [second], name: -1.0}]
    base = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(HyperparameterError, match=f"{name} must be"):
        WSAM(base)
    assert name not in base.param_groups[0]
    wsam, params = make()
    backward(params)
    unchanged(wsam, params)
    before, wsam.param_groups[0][name] = wsam.param_groups[0][name], -1.0
    with pytest.raises(HyperparameterError, match=f"{name} must be"), wsam.perturb():
        pass
    wsam.param_groups[0][name] = before


def test_wsam_options_have_the_defaults_of_the_signature():
    wsam, _ = make()
    group = wsam.param_groups[0]
    for name, rule in WSAM_OPTIONS.items():
        key = name if name in ("rho", "gamma") else f"wsam_{name}"
        assert group[key] == rule.default
    defaults = {name: rule.default for name, rule in WSAM_OPTIONS.items()}
    assert checked("WSAM", WSAM_OPTIONS, defaults) == defaults


@pytest.mark.parametrize("base", [None, torch.optim.SGD, 3])
def test_wsam_base_must_be_an_optimizer(base):
    with pytest.raises(HyperparameterError, match="must be another optimizer"):
        WSAM(base)


def test_wsam_base_must_not_be_wsam():
    with pytest.raises(HyperparameterError, match="got WSAM"):
        WSAM(make()[0])


def test_wsam_base_must_not_need_a_closure():
    with pytest.raises(HyperparameterError, match="got LBFGS, whose step"):
        WSAM(torch.optim.LBFGS(weights()))


def test_wsam_base_without_a_rate_cannot_be_decoupled():
    class NoRate(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad)

    params = weights()
    with pytest.raises(HyperparameterError, match="got none in group 0 of NoRate"):
        WSAM(NoRate(params))
    full_step(WSAM(NoRate(params), decouple=False, gamma=0.5), params)


def test_wsam_model_must_be_a_module():
    with pytest.raises(HyperparameterError, match="or None, got list"):
        make(model=[])


def test_wsam_complex_parameters_are_refused():
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UnsupportedTensorError, match="WSAM: parameters must be"):
        make([param])


def test_wsam_sparse_gradients_are_refused_in_the_first_pass(unchanged):
    wsam, params = make()
    full_step(wsam, params)
    unchanged(wsam, params)
    wsam.zero_grad()
    backward(params)
    kept = params[0].grad
    params[1].grad = torch.ones(2).to_sparse()
    with pytest.raises(UnsupportedTensorError, match="WSAM: gradients must be dense"):
        wsam.first_step()
    assert params[0].grad is kept


def test_wsam_sparse_gradients_are_refused_in_the_second_pass(unchanged):
    wsam, params = make()
    full_step(wsam, params)
    unchanged(wsam, params)
    wsam.zero_grad()
    backward(params)
    with wsam.perturb():
        params[0].grad = torch.ones(2)
        params[1].grad = torch.ones(2).to_sparse()
    with pytest.raises(UnsupportedTensorError, match="WSAM: gradients must be dense"):
        wsam.step()


def test_wsam_parameter_that_is_freed_between_the_passes_is_refused():
    wsam, params = make()
    backward(params)
    wsam.first_step()
    params[0].untyped_storage().resize_(0)
    with pytest.raises(UnsupportedTensorError, match="freed"):
        wsam.second_step()


def test_wsam_sparse_gradient_can_be_mended_before_the_step():
    wsam, params = make()
    backward(params)
    wsam.first_step()
    for p in params:
        p.grad = torch.ones(2).to_sparse()
    with pytest.raises(UnsupportedTensorError, match="nothing was stepped"):
        wsam.second_step()
    for p in params:
        p.grad = p.grad.to_dense()
    wsam.step()
    assert wsam.param_groups[0]["wsam_step"] == 1


def test_wsam_step_that_is_due_needs_a_second_pass(unchanged):
    wsam, params = make()
    full_step(wsam, params)
    unchanged(wsam, params)
    wsam.zero_grad()
    backward(params)
    with pytest.raises(StepOrderError, match="needs a second backward"):
        wsam.step()


def test_wsam_step_at_rate_zero_needs_a_second_pass_too_once_there_is_state():
    wsam, params = make()
    full_step(wsam, params)
    wsam.param_groups[0]["lr"] = 0.0
    with pytest.raises(StepOrderError, match="needs a second backward"):
        wsam.step()


def test_wsam_step_without_second_gradients_is_refused(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    backward(params)
    with wsam.perturb():
        pass
    with pytest.raises(StepOrderError, match="none of the 2 parameters"):
        wsam.step()


def test_wsam_step_after_gradients_were_cleared_is_refused(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    backward(params)
    with wsam.perturb():
        backward(params)
    wsam.zero_grad()
    with pytest.raises(StepOrderError, match="got none"):
        wsam.step()


def test_wsam_step_within_the_block_is_refused(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    backward(params)
    with pytest.raises(StepOrderError, match="leave the block"), wsam.perturb():
        wsam.step()
    with pytest.raises(StepOrderError, match="got none"):
        wsam.step()


def test_wsam_second_step_within_the_block_is_refused(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    backward(params)
    with pytest.raises(StepOrderError, match="got the block of"), wsam.perturb():
        wsam.second_step()


def test_wsam_second_step_needs_a_first(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    for _ in range(2):
        with pytest.raises(StepOrderError, match="got no first_step"):
            wsam.second_step()
        backward(params)
        with wsam.perturb():
            backward(params)


def test_wsam_first_step_twice_is_refused_and_the_pass_goes_on():
    wsam, params = make()
    other, expected = make()
    backward(params)
    wsam.first_step()
    backward(params)
    for again in (wsam.first_step, wsam.perturb().__enter__):
        with pytest.raises(StepOrderError, match="while they are perturbed"):
            again()
    with pytest.raises(StepOrderError, match="call second_step"):
        wsam.step()
    with pytest.raises(StepOrderError, match="call second_step"):
        wsam.step(lambda: 1 / 0)
    with pytest.raises(StepOrderError, match="call restore"):
        wsam.load_state_dict(wsam.state_dict())
    wsam.second_step()
    full_step(other, expected)
    assert all(map(torch.equal, params, expected))


def test_wsam_pass_after_a_pass_without_a_step_takes_its_place():
    wsam, params = make()
    other, expected = make()
    full_step(other, expected)
    backward(params)
    with wsam.perturb():
        params[0].sum().backward()
    for p in params:
        p.grad = None
    backward(params)
    wsam.first_step()
    backward(params)
    wsam.second_step()
    assert all(map(torch.equal, params, expected))


@pytest.mark.parametrize("failing_call", [1, 2])
def test_wsam_failing_closure_changes_nothing(failing_call, unchanged):
    wsam, params = make(every_k=2)
    full_step(wsam, params)
    wsam.zero_grad()
    backward(params)
    wsam.step()
    assert wsam.needs_second_pass
    # A direction that is due to be measured anew lends its memory to the pass.
    for p in params:
        wsam.state[p]["wsam_direction"].zero_()
    saved = [p.detach().clone() for p in params]
    momentum = [wsam.state[p]["momentum_buffer"].clone() for p in params]
    calls = []

    def closure():
        calls.append(None)
        backward(params)
        if len(calls) == failing_call:
            raise KeyError

    with pytest.raises(KeyError):
        wsam.step(closure)
    assert len(calls) == failing_call
    assert all(map(torch.equal, params, saved))
    buffers = [wsam.state[p]["momentum_buffer"] for p in params]
    assert all(map(torch.equal, buffers, momentum))
    assert wsam.needs_second_pass
    with pytest.raises(StepOrderError, match="got none"):
        wsam.step()
    unchanged(wsam, params)


def test_wsam_interrupt_restores_the_weights(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    backward(params)
    with pytest.raises(KeyboardInterrupt), wsam.perturb():
        raise KeyboardInterrupt
    assert all(p.grad is None for p in params)


def test_wsam_failure_while_perturbing_restores_the_weights(monkeypatch, unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    backward(params)

    def fails(*args, **kwargs):
        with torch.no_grad():
            params[0].add_(1.0)
        raise MemoryError

    monkeypatch.setattr("drivetrain_optim.wsam._pass.perturb_", fails)
    with pytest.raises(MemoryError):
        wsam.first_step()
    assert all(p.grad is not None for p in params)
    with pytest.raises(StepOrderError, match="got no first_step"):
        wsam.second_step()


def test_wsam_failing_base_gives_the_gradients_back(monkeypatch):
    wsam, params = make(decouple=False)
    backward(params)
    with wsam.perturb():
        backward(params)
    grads = [p.grad for p in params]
    monkeypatch.setattr(wsam.base, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wsam.step()
    assert all(p.grad is g for p, g in zip(params, grads, strict=True))
    assert wsam.param_groups[0]["wsam_step"] == 0


def test_wsam_group_that_is_refused_is_not_added(unchanged):
    wsam, params = make()
    unchanged(wsam, params)
    extra = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(HyperparameterError, match="gamma must be"):
        wsam.add_param_group({"params": [extra], "gamma": 2.0})
    whole = torch.nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
    with pytest.raises(UnsupportedTensorError, match=r"parameter 1\.0"):
        wsam.add_param_group({"params": [whole]})
    with pytest.raises(ValueError, match="more than one parameter group"):
        wsam.add_param_group({"params": params})
    assert len(wsam.param_groups) == 1


def foreign_states():
    params = weights()
    sgd = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    yield "another optimizer", sgd.state_dict()
    yield "WSAM on AdamW", WSAM(torch.optim.AdamW(params)).state_dict()


@pytest.mark.parametrize(("found", "state"), list(foreign_states()))
def test_wsam_state_of_another_optimizer_is_refused(found, state, unchanged):
    wsam, params = make()
    full_step(wsam, params)
    unchanged(wsam, params)
    with pytest.raises(StateDictError, match=f"WSAM on SGD, but .* 0 is of {found}"):
        wsam.load_state_dict(state)


def test_wsam_state_of_other_groups_is_refused(unchanged):
    wsam, params = make()
    full_step(wsam, params)
    unchanged(wsam, params)
    other, _ = make(weights()[:1])
    with pytest.raises(ValueError, match="doesn't match the size"):
        wsam.load_state_dict(other.state_dict())
