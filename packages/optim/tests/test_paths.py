"""Every path of every optimizer, step by step from the same state."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from drivetrain_optim import AGD, LAMB
from drivetrain_optim.batched._rounding import round_to_bfloat16_
from drivetrain_optim.batched._scalars import where_positive

MODES = [
    (AGD, {}),
    (AGD, {"weight_decay": 0.1, "clip": 1.0, "delta": 0.1}),
    (AGD, {"weight_decay": 0.1, "decay": "coupled", "amsgrad": True}),
    (AGD, {"weight_decay": 0.01, "decay": "fixed", "maximize": True}),
    (AGD, {"max_grad_norm": 1.0, "delta": "transformer"}),
    (AGD, {"betas": (0.0, 0.9), "delta": 0.1}),
    (LAMB, {}),
    (LAMB, {"max_grad_norm": 1.0, "trust_clip": (0.1, 2.0)}),
    (LAMB, {"decay": "decoupled", "bias_correction": False, "adapt": "none"}),
    (LAMB, {"decay": "coupled", "weight_norm_clip": (0.0, 1.0), "maximize": True}),
]
LOOP = pytest.param({"foreach": False}, id="loop")
PATHS = [
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({"fused": True}, id="native"),
    pytest.param({"capturable": True}, id="capturable"),
]
SIZES = [(64, 33), (1,), (0,), (4097,), (16_385,), ()]


def parameters(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in SIZES
    ]


def set_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def continued(make, params, saved, dtype=None, **path):
    """One step from a saved state, and the weights after it in float64."""
    copies = [
        torch.nn.Parameter(p.detach().to(dtype or p.dtype, copy=True)) for p in params
    ]
    for p, q in zip(params, copies, strict=True):
        q.grad = p.grad.to(q.dtype)
    optimizer = make(copies, **path)
    saved = copy.deepcopy(saved)
    for group in saved["param_groups"]:
        group.update({"foreach": None, "fused": None, "capturable": False}, **path)
    optimizer.load_state_dict(saved)
    optimizer.step()
    return [q.detach().double() for q in copies]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "options"), MODES, ids=str)
def test_path_is_no_further_from_float64_than_twice_the_loop(kind, options, path):
    def make(params, **path):
        return kind(params, lr=0.01, **options, **path)

    params = parameters()
    optimizer = make(params, foreach=False)
    for step in range(6):
        set_gradients(params, step)
        saved = copy.deepcopy(optimizer.state_dict())
        truth = continued(make, params, saved, torch.float64, foreach=False)
        loop = continued(make, params, saved, foreach=False)
        other = continued(make, params, saved, **path)
        for p, exact, by_loop, by_path in zip(params, truth, loop, other, strict=True):
            if p.numel() == 0:
                continue
            # Half a unit in the last place is what storing the exact result costs.
            ulp = torch.finfo(torch.float32).eps * exact.abs().max() / 2
            allowed = 2 * max((by_loop - exact).abs().max(), ulp)
            assert (by_path - exact).abs().max() <= allowed
        optimizer.step()


@pytest.mark.parametrize("path", [LOOP, *PATHS])
def test_infinite_weight_spoils_no_other(path):
    weight = torch.tensor([float("inf"), 1.0, 2.0])
    param = torch.nn.Parameter(weight)
    param.grad = torch.ones(3)
    AGD([param], lr=0.1, betas=(0.0, 0.9), **path).step()
    assert torch.isinf(param[0])
    assert torch.isfinite(param[1:]).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [AGD, LAMB])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("state_dtype", [None, torch.float32, torch.float64])
def test_path_rounds_narrow_weights_like_the_loop(kind, dtype, state_dtype, path):
    def make(params, **path):
        return kind(params, lr=0.01, state_dtype=state_dtype, **path)

    params = parameters(dtype)
    optimizer = make(params, foreach=False)
    for step in range(3):
        set_gradients(params, step)
        saved = copy.deepcopy(optimizer.state_dict())
        loop = continued(make, params, saved, foreach=False)
        other = continued(make, params, saved, **path)
        for by_loop, by_path in zip(loop, other, strict=True):
            # What lies between two numbers may go either way after an error of 1e-7.
            assert (by_loop != by_path).float().mean().nan_to_num() <= 0.001
            torch.testing.assert_close(by_loop, by_path, rtol=0.01, atol=1e-3)
        optimizer.step()


@pytest.mark.parametrize("path", [LOOP, *PATHS])
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_master_weights_take_the_steps_of_float32(kind, path):
    narrow = parameters(torch.bfloat16)
    wide = [torch.nn.Parameter(p.detach().float()) for p in narrow]
    optimizer = kind(narrow, lr=1e-3, master_weights=True, **path)
    reference = kind(wide, lr=1e-3, **path)
    for step in range(5):
        set_gradients(narrow, step)
        for p, q in zip(narrow, wide, strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
    for p, q in zip(narrow, wide, strict=True):
        assert torch.equal(optimizer.state[p]["master"], q.detach())
        assert torch.equal(p.detach(), q.detach().bfloat16())


@pytest.mark.parametrize("kind", [AGD, LAMB])
@pytest.mark.parametrize(
    "path", [{"foreach": False}, {"foreach": True}, {"fused": True}]
)
def test_stochastic_rounding_follows_small_steps_on_average(kind, path):
    start = torch.full((20_000,), 1.0, dtype=torch.bfloat16)
    param = torch.nn.Parameter(start.clone())
    # One step in the last place of bf16 is 2^-7 here, far above the learning rate.
    optimizer = kind(
        [param], lr=1e-4, weight_decay=0.0, stochastic_rounding=True, **path
    )
    nearest = torch.nn.Parameter(start.clone())
    rounded = kind([nearest], lr=1e-4, weight_decay=0.0, **path)
    for _ in range(50):
        param.grad = torch.ones_like(param)
        nearest.grad = torch.ones_like(nearest)
        optimizer.step()
        rounded.step()
    assert torch.equal(nearest.detach(), start)
    moved = (start.float() - param.detach().float()).mean().item()
    # AGD divides by the size of the differences, LAMB keeps the weights' norm.
    wide = torch.nn.Parameter(torch.ones(20_000))
    exact = kind([wide], lr=1e-4, weight_decay=0.0, **path)
    for _ in range(50):
        wide.grad = torch.ones_like(wide)
        exact.step()
    expected = (1 - wide.detach()).mean().item()
    assert moved == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_stochastic_rounding_is_the_same_on_all_paths_and_repeatable(kind):
    results = []
    for path in ({"foreach": False}, {"foreach": True}, {"fused": True}, {}):
        params = parameters(torch.bfloat16)
        optimizer = kind(params, lr=1e-3, stochastic_rounding=True, **path)
        set_gradients(params, 0)
        optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in params]).double())
    loop, foreach, native, default = results
    assert (loop != foreach).double().mean() <= 0.001
    assert (loop != native).double().mean() <= 0.001
    assert torch.equal(native, default)
    start = torch.cat([p.detach().flatten() for p in parameters(torch.bfloat16)])
    assert (loop != start.double()).double().mean() > 0.05


def test_rounding_keeps_what_has_no_neighbours():
    values = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0, 1.0, -2.5])
    out = torch.empty(6, dtype=torch.bfloat16)
    for seed in range(20):
        round_to_bfloat16_(out, values, seed)
        assert torch.equal(out.float(), values)
    round_to_bfloat16_(out, torch.full((6,), float("nan")), 0)
    assert out.isnan().all()


def test_rounding_is_unbiased_for_both_signs():
    values = torch.cat([torch.full((50_000,), x) for x in (1.001, -1.001, 3e-5, -7.77)])
    out = torch.empty_like(values, dtype=torch.bfloat16)
    round_to_bfloat16_(out, values, 3)
    means = out.double().view(4, -1).mean(1)
    torch.testing.assert_close(
        means, values.double().view(4, -1)[:, 0], rtol=2e-4, atol=0
    )


@pytest.mark.parametrize("path", [LOOP, *PATHS[::2]])
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_factor_of_gradients_on_a_device_keeps_their_dtype(kind, path, monkeypatch):
    """There it is a tensor of float64, wider than a parameter without dimensions."""
    results = []
    for factor in (0.25, torch.tensor(0.25, dtype=torch.float64)):
        monkeypatch.setattr(
            "drivetrain_optim.batched._batched.grad_scale", lambda *_, f=factor: f
        )
        params = parameters()
        optimizer = kind(params, lr=0.01, max_grad_norm=1.0, **path)
        for seed in range(2):
            set_gradients(params, seed)
            optimizer.step()
        results.append(params)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [AGD, LAMB])
@pytest.mark.parametrize("path", [LOOP, *PATHS])
def test_backward_through_weights_that_a_step_has_changed_is_refused(kind, path):
    first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    optimizer = kind([*first.parameters(), *last.parameters()], lr=0.1, **path)
    out = last(first(torch.randn(16, 4)).tanh())
    out.mean().backward(retain_graph=True)
    before = [weight._version for weight in last.parameters()]
    optimizer.step()
    assert all(w._version > v for w, v in zip(last.parameters(), before, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.square().mean().backward()


def test_where_positive_takes_numbers_and_tensors():
    signs = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    chosen = where_positive(signs, 2.0, torch.full((3,), 3.0))
    assert chosen.dtype == torch.float64
    assert chosen.tolist() == [2.0, 3.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_compiled_step_is_the_plain_one(kind):
    models = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = kind(model.parameters(), lr=0.05)
        step = optimizer.step
        if is_compiled:
            step = torch.compile(step, backend="aot_eager")
        for number in range(3):
            optimizer.zero_grad()
            model(torch.full((4, 5), number + 1.0)).square().sum().backward()
            step()
        models.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *models))


@pytest.mark.parametrize("options", [{}, {"fused": False}, {"foreach": True}])
@pytest.mark.parametrize("kind", [AGD, LAMB])
@pytest.mark.filterwarnings("error")
def test_step_on_fake_tensors_tells_the_state_without_its_memory(kind, options):
    with FakeTensorMode():
        model = torch.nn.Linear(64, 128)
        optimizer = kind(model.parameters(), **options)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
    for param in model.parameters():
        state = optimizer.state[param]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == param.shape
