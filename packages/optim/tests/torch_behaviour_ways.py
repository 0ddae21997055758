"""Rows of ways that agree: foreach and fused are the loop, whatever the dtypes are."""

import functools

import pytest
import torch
from torch_behaviour import EVERY, SUBJECTS, row, same

from drivetrain_optim import explain

LOOP = {"foreach": False, "fused": False}


def network(dtype=torch.float32, *, seed=1):
    """Returns torch's small network for comparisons, and its input."""
    data = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], dtype=dtype).reshape(3, 2)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(2, 3), torch.nn.Sigmoid()]
    layers += [torch.nn.Linear(3, 1), torch.nn.Sigmoid()]
    return torch.nn.Sequential(*layers).to(dtype), data


def compare(subject, one, other, dtypes, *, step_dtype=None, **tolerances):
    """Steps two ways side by side: a layer is frozen for a while, a step has no gradient.

    Args:
        subject: The optimizer.
        one: The options of one way.
        other: Those of the other.
        dtypes: That of the networks.
        step_dtype: The dtype that the count of steps must have, if it matters.
        **tolerances: `atol` and `rtol`; torch's for the dtype without them.
    """
    for inputs in subject.inputs:
        runs = []
        for options in (one, other):
            model, data = network(dtypes)
            sizes = ((), (0,))
            lone = [
                torch.ones(size, dtype=dtypes, requires_grad=True) for size in sizes
            ]
            params = [*model.parameters(), *lone]
            optimizer = subject.build(params, **inputs, **options)
            runs.append((model, lone, data, optimizer))
        for number in range(7):
            for run in runs:
                _compared_step(subject, *run, number)
            states = [optimizer.state for *_, optimizer in runs]
            kept_by = [[*model.parameters(), *lone] for model, lone, *_ in runs]
            pairs = zip(*kept_by, strict=True)
            for mine, theirs in pairs:
                same(theirs, mine, **tolerances)
                assert states[0][mine].keys() == states[1][theirs].keys()
                for key, kept in states[0][mine].items():
                    same(states[1][theirs][key], kept, **tolerances)
                    if key == "step" and step_dtype is not None:
                        assert kept.dtype is step_dtype


def _compared_step(subject, model, lone, data, optimizer, number):
    if number in {3, 5}:
        model[2].requires_grad_(number == 5)

    def closure():
        optimizer.zero_grad()
        if number == 2:
            return None
        loss = model(data).sum() + sum(p.square().sum() for p in lone)
        loss.backward()
        return loss

    subject.step(optimizer, closure)


@row(
    "test_foreach_matches_forloop",
    "float64: seven steps of foreach are those of the loop, state too; a layer is "
    "frozen for a while, and one step has no gradient",
    once=True,
)
def foreach_is_the_loop(subject, way):
    del way
    compare(subject, LOOP, {"foreach": True}, torch.float64)


def _fused_is_the_loop(dtype, tolerances):
    def run(subject, way):
        del way
        close = dict(tolerances)
        if subject.second_pass and tolerances:
            # Weights are rounded at random, twice a step: to one neighbour or the other.
            close["rtol"] = 2**-6
        compare(subject, LOOP, {"fused": True}, dtype, **close)

    return run


_NARROW = {"rtol": 5e-3, "atol": 5e-3}
for _dtype, _tolerances in {
    torch.float64: {},
    torch.float32: {},
    torch.bfloat16: _NARROW,
    torch.float16: _NARROW,
}.items():
    _name = str(_dtype).removeprefix("torch.")
    row(
        f"test_fused_matches_forloop: {_name}",
        f"{_name}: seven steps of fused are those of the loop, state too",
        once=True,
    )(_fused_is_the_loop(_dtype, _tolerances))


def mixed(subject, way, devices, number):
    """Steps parameters of all dtypes on some devices in two ways, and compares them."""
    made = [
        torch.rand(2, 3, dtype=dtype, device=device)
        for device in devices
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    ]
    grads = [torch.rand_like(p) for p in made]
    for inputs in subject.inputs:
        ends = []
        for options in (LOOP, way.options):
            params = [p.clone().requires_grad_() for p in made]
            optimizer = subject.build(params, **inputs, **options)

            def closure(params=params):
                for param, grad in zip(params, grads, strict=True):
                    param.grad = grad.clone()

            for _ in range(number):
                subject.step(optimizer, closure)
            ends.append((params, [optimizer.state[p] for p in params]))
        for mine, theirs, ours, other in zip(*ends[0], *ends[1], strict=True):
            narrow = mine.dtype in {torch.float16, torch.bfloat16}
            close = {"rtol": 0.08, "atol": 1e-4} if narrow else {}
            same(ours, mine, **close)
            for key in theirs:
                same(other[key], theirs[key], **close)


@row(
    "test_mixed_device_dtype: dtypes",
    "parameters of four dtypes in one optimizer step as by the loop",
)
def mixed_dtypes(subject, way):
    mixed(subject, way, [way.device], 7)


@row(
    "test_set_default_dtype_works_with_foreach",
    "under the default dtype float64 the count of steps is float64, and float32 under "
    "float16; foreach steps as the loop under both",
    once=True,
)
def default_dtype(subject, way):
    del way
    before = torch.get_default_dtype()
    for dtype, count in (
        (torch.float64, torch.float64),
        (torch.float16, torch.float32),
    ):
        close = {"atol": 1e-5, "rtol": 1e-4} if dtype is torch.float16 else {}
        try:
            torch.set_default_dtype(dtype)
            compare(
                subject,
                LOOP,
                {"foreach": True},
                torch.float64,
                step_dtype=count,
                **close,
            )
        finally:
            torch.set_default_dtype(before)


@row(
    "test_fused_error_on_params_on_meta",
    "fused=True on meta parameters is an error in words, not a crash",
    refused=EVERY - {"WSAM over SGD"},
    as_in_torch="the same, at the first step; ours when it is built",
    once=True,
)
def fused_on_meta(subject, way):
    del way
    with torch.device("meta"):
        model = torch.nn.Linear(2, 3)
    build = functools.partial(subject.build, model.parameters(), fused=True)
    if "SGD" not in subject.name:
        build()

    def closure():
        for param in model.parameters():
            param.grad = torch.rand_like(param)

    with pytest.raises(RuntimeError, match="fused=True"):
        subject.step(build(), closure)


@row(
    "test_defaults_changed_to_foreach",
    "without foreach and fused the step is not the slow loop, on a GPU",
    once=True,
)
def fast_by_default(subject, way):
    model, _ = network()
    if subject.name not in {"AGD", "LAMB"}:
        # The default of the base is its own: WSAM sets neither flag.
        groups = subject.build(model.parameters()).base.param_groups
        assert all(group["foreach"] is None is group["fused"] for group in groups)
        return
    model.to(way.device)
    optimizer = SUBJECTS[subject.name].build(model.parameters())
    assert {use.path for use in explain(optimizer).uses} <= {
        "foreach",
        "native",
        "triton",
    }
