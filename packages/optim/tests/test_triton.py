"""The Triton kernels against the loop: on a GPU, or interpreted where there is none."""

import copy
import gc
import importlib.util
import logging
import math
import os
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from drivetrain_core.accelerators import AcceleratorFacts, accelerator_of
from drivetrain_optim import AGD, LAMB
from drivetrain_optim.algorithms._agd_update import agd_scalars, update_loop
from drivetrain_optim.algorithms._lamb_update import (
    apply_loop,
    lamb_scalars,
    moments_loop,
    trust_ratios,
)
from drivetrain_optim.batched import _layout
from drivetrain_optim.batched._batch import Batch, Entry, Kind
from drivetrain_optim.batched._paths import Choice
from drivetrain_optim.batched._rounding import round_to_bfloat16_
from drivetrain_optim.batched._work import Work
from drivetrain_optim.checks._options import AGD_OPTIONS, LAMB_OPTIONS
from drivetrain_optim.fused import _triton, _triton_launch
from drivetrain_optim.fused._table import Table

HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
if HAS_TRITON and DEVICE.type == "cpu":
    # Triton decides when it is imported, which other tests do too.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TRITON_INTERPRET", "1")
        _triton_launch._kernels()

pytestmark = [
    pytest.mark.extra,
    pytest.mark.interpreter,
    pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed"),
]

SIZES = [(), (0,), (1,), (7,), (3, 5), (4097,)]
AGD_MODES = [
    {},
    {"betas": (0.0, 0.99)},
    {"betas": (0.5, 0.9), "delta": 0.3},
    {"delta": "transformer"},
    {"weight_decay": 0.1},
    {"weight_decay": 0.01, "decay": "fixed"},
    {"weight_decay": 0.1, "decay": "coupled"},
    {"amsgrad": True, "betas": (0.9, 0.9)},
    {"clip": 0.5, "max_grad_norm": 1.0},
    {"maximize": True, "weight_decay": 0.1, "decay": "coupled", "amsgrad": True},
]
LAMB_MODES = [
    {},
    {"weight_decay": 0.0, "adapt": "decayed"},
    {"decay": "decoupled", "weight_decay": 0.1},
    {"decay": "coupled", "weight_decay": 0.1, "maximize": True},
    {"bias_correction": False, "grad_averaging": False},
    {"adapt": "none"},
    {"trust_clip": (0.5, 2.0)},
    {"weight_norm_clip": (0.1, 0.7)},
    {"betas": (0.0, 0.9), "max_grad_norm": 1.0},
]
STEPS = [(AGD, mode) for mode in AGD_MODES] + [(LAMB, mode) for mode in LAMB_MODES]
DTYPES = [
    (torch.float32, torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.float16, torch.float16, torch.float32),
    (torch.float16, torch.float16, torch.float16),
]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    if DEVICE.type == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def forced(monkeypatch):
    """Steps that may choose take the Triton kernels."""
    real = _layout.choose_path

    def choose(optimizer, **options):
        if options["foreach"] is None:
            return Choice("triton", "the test wants it")
        return real(optimizer, **options)

    monkeypatch.setattr(_layout, "choose_path", choose)


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels that were launched."""
    names = []
    run = _triton_launch.Launcher._run

    def spy(self, name, *rest):
        names.append(name)
        run(self, name, *rest)

    monkeypatch.setattr(_triton_launch.Launcher, "_run", spy)
    return names


@pytest.fixture
def uploads(monkeypatch):
    """The shapes of what was copied to the device."""
    shapes = []
    upload = _triton_launch.Launcher._upload

    def spy(self, array, work):
        shapes.append(array.shape)
        return upload(self, array, work)

    monkeypatch.setattr(_triton_launch.Launcher, "_upload", spy)
    return shapes


def parameters(dtype=torch.float64, sizes=SIZES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(s, generator=generator).to(DEVICE, dtype) for s in sizes]
    return [torch.nn.Parameter(value) for value in values]


def run(params, optimizer, num_steps=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        for p in params:
            noise = torch.randn(p.shape, generator=generator).to(DEVICE, p.dtype)
            p.grad = 0.3 * p.detach() + noise
        optimizer.step()


def tensors(optimizer, params):
    for p in params:
        state = optimizer.state[p]
        yield from (p.detach(), *(state[name] for name in sorted(state)))


def work_of(dtypes, sizes=SIZES, moments=("exp_avg", "exp_avg_sq"), **kind):
    """Returns a step in the middle of a training."""
    generator = torch.Generator().manual_seed(2)

    def draw(size, dtype):
        return torch.randn(size, generator=generator).to(DEVICE, dtype)

    weight, grad, moment = dtypes
    entries, grads = [], []
    for index, size in enumerate(sizes):
        state = {"step": torch.tensor(5.0), "exp_avg": draw(size, moment)}
        state |= {name: draw(size, moment).square() for name in moments[1:]}
        entries.append(Entry(index, index, draw(size, weight), state))
        if kind.get("master"):
            state["master"] = entries[-1].param.float() * 1.001
        grads.append(draw(size, grad))
    common = {"path": "triton", "because": "", "device": DEVICE, "master": False}
    common |= {"stochastic": False, "sharded": None, "adapts": True, "step": 5.0}
    batch = Batch(Kind(dtypes=dtypes, moments=moments, **(common | kind)), entries)
    table = Table(batch)
    return Work({}, 0.01, batch, table.point_to(batch, batch.local_grads(grads)), table)


def group_of(kind, mode):
    rules = {AGD: AGD_OPTIONS, LAMB: LAMB_OPTIONS}[kind]
    group = {name: rule.default for name, rule in rules.items()} | mode
    if isinstance(group.get("delta"), str):
        group["delta"] = 1e-14
    return group


def columns_of(work, dtype):
    """Returns the values of a step in one dtype, as columns of their own."""
    columns = work.columns()
    fields = columns.weights, columns.grads, *columns.moments
    weights, grads, *moments = ([t.to(dtype, copy=True) for t in f] for f in fields)
    return type(columns)(weights, grads, tuple(moments))


def step_loop(kind, columns, group, **changes):
    if kind is AGD:
        scalars = agd_scalars(group, 0.01, 6, **changes)
        update_loop(columns, scalars)
        return
    scalars = lamb_scalars(group, 0.01, 6, **changes)
    apply_loop(columns, scalars, trust_ratios(moments_loop(columns, scalars), scalars))


def step_triton(kind, work, group, **changes):
    if kind is AGD:
        _triton.agd(work, agd_scalars(group, 0.01, 6, **changes))
        return
    scalars = lamb_scalars(group, 0.01, 6, **changes)
    _triton.lamb_apply(work, scalars, _triton.lamb_moments(work, scalars))


def errors(columns, exact):
    """The largest error of weights and of each moment."""
    fields = zip(
        (columns.weights, *columns.moments),
        (exact.weights, *exact.moments),
        strict=True,
    )
    return [
        max(
            float((t.double() - e).abs().max())
            for t, e in zip(*f, strict=True)
            if e.numel()
        )
        for f in fields
    ]


@pytest.mark.parametrize(("kind", "mode"), STEPS, ids=str)
def test_triton_float64_equals_the_loop(kind, mode, forced):
    one, other = parameters(), parameters()
    fused = kind(one, lr=0.01, **mode)
    plain = kind(other, lr=0.01, foreach=False, **mode)
    run(one, fused)
    run(other, plain)
    for tensor, wanted in zip(tensors(fused, one), tensors(plain, other), strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("kind", "mode"), STEPS, ids=str)
def test_triton_float32_is_as_near_as_the_loop(kind, mode):
    group = group_of(kind, mode)
    moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[
        : 3 if "amsgrad" in mode else 2
    ]
    work = work_of(DTYPES[0], moments=moments, adapts=mode.get("adapt", "all") == "all")
    exact, plain = columns_of(work, torch.float64), columns_of(work, torch.float32)
    if kind is LAMB and not work.batch.kind.adapts:
        group |= {"trust_clip": (1.0, 1.0)}
    step_loop(kind, exact, group)
    step_loop(kind, plain, group)
    step_triton(kind, work, group)
    pairs = zip(errors(work.columns(), exact), errors(plain, exact), strict=True)
    for error, allowed in pairs:
        assert error <= 2 * allowed


@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("dtypes", DTYPES[1:], ids=str)
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_triton_narrow_tensors_are_rounded_once(kind, dtypes, master):
    group = group_of(kind, {})
    work = work_of(dtypes, master=master)
    exact = columns_of(work, torch.float64)
    step_triton(kind, work, group)
    if kind is AGD:
        step_loop(kind, exact, group)
    else:
        scalars = lamb_scalars(group, 0.01, 6)
        ratios = trust_ratios(moments_loop(exact, scalars), scalars)
        # The second pass reads the moments as they were rounded.
        apply_loop(replace(exact, moments=work.columns().moments), scalars, ratios)
    for name, wanted in zip(work.batch.kind.moments, exact.moments, strict=True):
        assert_rounded(work.batch.kept(name), wanted)
    assert_rounded(work.batch.params, exact.weights)
    if master:
        assert_rounded(work.batch.kept("master"), exact.weights)


def assert_rounded(tensors, exact):
    for tensor, wanted in zip(tensors, exact, strict=True):
        # Half a unit in the last place, and the error of float32 arithmetic.
        half = torch.finfo(tensor.dtype).eps / 2
        tolerance = half * (1 + 2**-5) if tensor.dtype is not torch.float32 else 4e-6
        torch.testing.assert_close(tensor.double(), wanted, rtol=tolerance, atol=4e-6)


def test_triton_stochastic_rounding_equals_that_of_the_loop():
    work = work_of(DTYPES[1], [(7,), (4097,), (64, 64)], stochastic=True)
    group = group_of(AGD, {})
    scalars = agd_scalars(group, 0.0, 6)._replace(shrink=1.37)
    before = [p.clone() for p in work.batch.params]
    # Twice a bfloat16 whose scaled value is infinite, and NaN.
    for tensor in (before[0], work.batch.params[0]):
        tensor[:3] = torch.tensor([3.3e38, -3.3e38, math.nan])
    with np.errstate(invalid="ignore", over="ignore"):
        _triton.agd(work, scalars)
    seeds = work.batch.seeds().tolist()
    for param, value, seed in zip(work.batch.params, before, seeds, strict=True):
        wanted = torch.empty_like(param)
        round_to_bfloat16_(wanted, value.float() * np.float32(1.37), seed)
        assert torch.equal(param.nan_to_num(7), wanted.nan_to_num(7))
    nearest = (before[1].float() * np.float32(1.37)).bfloat16()
    assert not torch.equal(work.batch.params[1], nearest)


@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_triton_follows_stochastic_rounding_over_steps(kind, forced):
    one, other = (parameters(torch.bfloat16, [(33, 9)]) for _ in range(2))
    options = {"lr": 0.01, "stochastic_rounding": True}
    run(one, kind(one, **options))
    run(other, kind(other, foreach=False, **options))
    same = (one[0] == other[0]).float().mean()
    assert same > 0.99  # a last bit of float32 decides now and then


def test_triton_takes_one_launch_for_any_number_of_tensors(forced, launches):
    params = parameters(torch.float32, [(n,) for n in range(40)])
    run(params, AGD(params), 2)
    assert launches == ["agd_kernel"] * 2
    launches.clear()
    run(params, LAMB(params), 1)
    assert launches == ["lamb_moments_kernel", "sum_chunks_kernel", "lamb_apply_kernel"]


def test_triton_copies_the_table_only_when_it_changed(forced, uploads):
    params = parameters(torch.float32, [(5,), (6,)])
    optimizer = AGD(params)
    run(params, optimizer, 1)
    assert uploads == [(2, 2), (3,), (2, 10)]  # chunks, first chunks, table
    uploads.clear()
    optimizer.step()
    assert uploads == []
    kept = params[0].grad
    params[0].grad = kept.clone()
    optimizer.step()
    assert uploads == [(2, 10)]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU captures indeed")
def test_triton_captured_launches_read_tables_of_their_own(
    forced, uploads, monkeypatch
):
    params = parameters(torch.float32, [(5,), (6,)])
    optimizer = LAMB(params, capturable=True)
    run(params, optimizer, 1)
    uploads.clear()
    kept = []
    keep = _triton_launch.Launcher._keep
    monkeypatch.setattr(
        _triton_launch.Launcher,
        "_keep",
        lambda self, work, *tensors: (
            kept.extend(map(weakref.ref, tensors)),
            keep(self, work, *tensors),
        ),
    )
    with monkeypatch.context() as capture:
        capture.setattr(_triton_launch, "is_capturing", lambda device: True)
        optimizer.step()
    assert uploads == [(2, 10)] * 2
    uploads.clear()
    optimizer.step()
    assert uploads == []
    del optimizer
    gc.collect()
    assert all(reference() is not None for reference in kept)
    params.clear()
    gc.collect()
    assert all(reference() is None for reference in kept)


def test_triton_leaves_no_weak_reference_to_a_weight(forced):
    params = parameters(torch.float32, [(5,), (6,)])
    run(params, AGD(params, max_grad_norm=1.0))
    # torch.utils.swap_tensors refuses a tensor that has one.
    assert [weakref.getweakrefcount(param) for param in params] == [0, 0]


def test_triton_steps_empty_tensors(forced):
    params = parameters(torch.float32, [(0,), (0, 3)])
    run(params, LAMB(params, max_grad_norm=1.0))


@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_triton_steps_non_contiguous_weights_and_gradients(kind, forced):
    def make():
        base = parameters(torch.float64, [(6, 5), (2, 3, 4, 5)])
        views = base[0].detach().t(), base[1].detach().permute(0, 2, 3, 1)
        return [torch.nn.Parameter(view) for view in views]

    one, other = make(), make()
    for params, options in ((one, {}), (other, {"foreach": False})):
        optimizer = kind(params, lr=0.1, **options)
        for p in params:
            p.grad = torch.arange(p.numel(), dtype=p.dtype, device=DEVICE).view(p.shape)
        optimizer.step()
    for p, wanted in zip(one, other, strict=True):
        torch.testing.assert_close(p, wanted, rtol=1e-12, atol=1e-13)


def test_triton_reads_tensors_at_odd_addresses(forced):
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(3 * 4500, generator=generator).to(DEVICE)
    params = [torch.nn.Parameter(flat[1:4400].clone()), torch.nn.Parameter(flat[:4500])]
    other = copy.deepcopy(params)
    grads = [flat[4501:8900], flat[8903:13403]]
    for group, options in ((params, {}), (other, {"foreach": False})):
        for p, grad in zip(group, grads, strict=True):
            p.grad = grad
        AGD(group, lr=0.01, **options).step()
    for p, wanted in zip(params, other, strict=True):
        torch.testing.assert_close(p, wanted)


@pytest.mark.parametrize(("kind", "mode"), [STEPS[0], STEPS[5], STEPS[10], STEPS[12]])
def test_triton_capturable_steps_count_for_each_parameter(kind, mode, forced):
    sizes = [(3,), (4097,), (1,)]
    one, other = parameters(sizes=sizes), parameters(sizes=sizes)
    lr = torch.tensor(0.01, dtype=torch.float64, device=DEVICE)
    fused = kind(one, lr=lr, capturable=True, **mode)
    plain = kind(other, lr=0.01, foreach=False, **mode)
    for step in range(4):
        for params in (one, other):
            for position, p in enumerate(params):
                p.grad = None
                if step % (position + 1) == 0:
                    p.grad = p.detach() * 0.5 + step
        fused.step()
        plain.step()
    assert [fused.state[p]["step"].item() for p in one] == [4, 2, 2]
    for p, wanted in zip(one, other, strict=True):
        torch.testing.assert_close(p, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_triton_gradient_scale_may_lie_on_the_device(kind, dtype):
    one, other = (work_of((dtype,) * 3) for _ in range(2))
    group = group_of(kind, {"maximize": True})
    scale = torch.tensor(0.3, dtype=torch.float64, device=DEVICE)
    step_triton(kind, one, group, grad_scale=scale)
    step_triton(kind, other, group, grad_scale=0.3)
    for p, wanted in zip(one.batch.params, other.batch.params, strict=True):
        torch.testing.assert_close(p, wanted, rtol=1e-6, atol=1e-7)


def test_triton_norms_equal_those_of_the_loop():
    sizes = [(0,), (1,), (4097,), (20_000,)]
    for dtypes in (*DTYPES, (torch.float64,) * 3):
        work = work_of(dtypes, sizes)
        wanted = torch.stack([grad.double().square().sum() for grad in work.grads])
        squares = _triton.grad_squares(work)
        assert squares.dtype is torch.float64
        torch.testing.assert_close(squares, wanted, rtol=1e-6, atol=0.0)
        assert torch.equal(squares, _triton.grad_squares(work))


def test_triton_lamb_leaves_zero_norms_unscaled():
    work = work_of(DTYPES[0], [(5,), (5,)])
    work.batch.params[0].zero_()
    for tensors in (work.batch.kept("exp_avg"), work.grads):
        tensors[1].zero_()
    exact = columns_of(work, torch.float64)
    group = group_of(LAMB, {"weight_decay": 0.0})
    step_loop(LAMB, exact, group)
    scalars = lamb_scalars(group, 0.01, 6)
    squares = _triton.lamb_moments(work, scalars)
    assert squares[0, 0] == 0
    assert squares[1, 1] == 0
    _triton.lamb_apply(work, scalars, squares)
    for p, wanted in zip(work.batch.params, exact.weights, strict=True):
        torch.testing.assert_close(p.double(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_triton_keeps_infinity_and_nan_as_the_loop_does(kind):
    work = work_of(DTYPES[0], [(8,)], ("exp_avg", "exp_avg_sq"))
    work.grads[0][:3] = torch.tensor([math.nan, math.inf, -math.inf])
    plain = columns_of(work, torch.float32)
    group = group_of(kind, {"clip": 0.5} if kind is AGD else {"adapt": "none"})
    with np.errstate(invalid="ignore", over="ignore"):
        step_loop(kind, plain, group)
        step_triton(kind, work, group)
    fused = work.columns()
    for ours, theirs in zip(
        (*fused.weights, *fused.moments[0], *fused.moments[1]),
        (*plain.weights, *plain.moments[0], *plain.moments[1]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_triton_chunks_cover_every_element_once():
    numels = [0, 1, 4096, 4097, 0, 3 * 4096, 5_000_000_000]
    chunks, first_chunks = _triton_launch.split(numels)
    ends = np.cumsum(np.bincount(chunks[:, 0], minlength=len(numels)))
    assert first_chunks.tolist() == [0, *ends]
    for row, numel in enumerate(numels):
        places = chunks[first_chunks[row] : first_chunks[row + 1]]
        assert (places[:, 0] == row).all()
        assert places[:, 1].tolist() == list(range(math.ceil(numel / 4096)))


def test_triton_kernels_pass_their_check():
    assert _triton.find_fault(DEVICE) is None


@pytest.mark.parametrize("name", ["agd", "lamb_apply", "grad_squares"])
def test_triton_check_finds_wrong_kernels(name, monkeypatch):
    real = getattr(_triton, name)

    def wrong(work, *rest):
        result = real(work, *rest)
        work.batch.params[2].add_(1e-2)
        return result if result is None else result * 1.01

    monkeypatch.setattr(_triton, name, wrong)
    assert " gives other " in _triton.find_fault(DEVICE)


def has_capability(monkeypatch, capability):
    """Lets each CUDA device of a machine that has none say what it is."""

    def facts(index=0):
        return AcceleratorFacts(
            type="cuda",
            name="a GPU",
            memory_bytes=1 << 36,
            capability=capability,
            triton=True,
        )

    monkeypatch.setattr(accelerator_of("cuda"), "facts", facts)


def test_triton_that_fails_its_check_is_reported_once(monkeypatch, caplog):
    def fail(device):
        raise ValueError("no kernel\nfor you")

    monkeypatch.setattr(_triton, "_found", {})
    monkeypatch.setattr(_triton, "find_fault", fail)
    has_capability(monkeypatch, (9, 0))
    device = torch.device("cuda", 0)
    monkeypatch.setattr(_triton, "is_capturing", lambda device: True)
    assert "before the graph capture" in _triton.missing_because(device)
    monkeypatch.setattr(_triton, "is_capturing", lambda device: False)
    with caplog.at_level(logging.WARNING):
        reasons = {_triton.missing_because(device) for _ in range(3)}
    assert reasons == {
        "the Triton kernels failed their check on cuda:0: ValueError: no kernel"
    }
    assert len(caplog.records) == 1


def test_triton_needs_a_gpu_with_bfloat16(monkeypatch):
    monkeypatch.setattr(_triton, "_found", {})
    monkeypatch.setattr(_triton, "is_capturing", lambda device: False)
    has_capability(monkeypatch, (7, 5))
    assert "8.0, cuda:0 has 7.5" in _triton.missing_because(torch.device("cuda", 0))
    assert (
        _triton.missing_because(torch.device("cpu")) == "there are no kernels for cpu"
    )
    assert "there is no device meta" in _triton.missing_because(torch.device("meta"))
