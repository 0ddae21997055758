"""What every op of the package keeps to, whatever it computes."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch.utils._pytree import tree_leaves

import drivetrain_kernels
from drivetrain_kernels import ImplementationError, explain
from drivetrain_kernels._explain import OPS, load_op

CPU = torch.device("cpu")
WITH_TRITON = [
    name
    for name in OPS
    if any(one.name == "triton" for one in load_op(name).implementations)
]


def call(name, impl, dtype=torch.float32):
    torch.manual_seed(0)
    args, kwargs = load_op(name).example(CPU, dtype)
    return tree_leaves(getattr(drivetrain_kernels, name)(*args, **kwargs, impl=impl))


@pytest.mark.parametrize("name", OPS)
def test_op_is_public_and_has_a_reference_last(name):
    op = load_op(name)
    assert op.name == name
    assert name in drivetrain_kernels.__all__
    names = [one.name for one in op.implementations]
    assert names[-1] == "reference"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", OPS)
def test_op_gives_the_same_by_every_implementation_that_is_here(name):
    op = load_op(name)
    args, kwargs = op.example(CPU, torch.float32)
    facts = op.facts(*args, **kwargs)
    wanted = call(name, "reference")
    for one in op.implementations:
        if one.name == "compiled" or one.refuse(facts) is not None:
            continue
        for ours, theirs in zip(call(name, one.name), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPS)
def test_op_runs_what_explain_says(name, monkeypatch):
    op = load_op(name)
    args, kwargs = op.example(CPU, torch.float32)
    told = explain(name, *args, **kwargs)
    assert told == explain(getattr(drivetrain_kernels, name), *args, **kwargs)
    assert str(told).startswith(f"{name}: {told.implementation}, because: ")
    ran = []

    def spied(one):
        return replace(one, call=lambda *a: (ran.append(one.name), one.call(*a))[1])

    spies = tuple(map(spied, op.implementations))
    module = import_module(f"drivetrain_kernels.{OPS[name]}")
    monkeypatch.setattr(module, "OP", replace(op, implementations=spies))
    call(name, "auto")
    assert ran[0] == told.implementation


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "layer_norm", "swiglu"])
def test_op_takes_distributed_tensors_on_torchs_operators(name, ranks_of_one):
    from torch.distributed.tensor import Shard, distribute_tensor

    plain = [torch.randn(4, 6) for _ in range(2)]
    args = [distribute_tensor(t, ranks_of_one, [Shard(0)]) for t in plain]
    if name in {"rms_norm", "layer_norm"}:
        plain, args = plain[:1], args[:1]
    told = explain(name, *args)
    assert ("triton", "takes no DTensor") in told.passed_over
    function = getattr(drivetrain_kernels, name)
    pairs = zip(
        tree_leaves(function(*args)), tree_leaves(function(*plain)), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one.full_tensor(), other)


@pytest.mark.parametrize("name", WITH_TRITON)
def test_op_refuses_triton_by_name_without_a_gpu_or_the_interpreter(name, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ImplementationError, match=f"^{name}: .*needs a CUDA tensor"):
        call(name, "triton")
