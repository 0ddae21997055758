"""The contract of accelerators: those that core knows keep it, broken ones do not."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from drivetrain_core.accelerators import TorchAccelerator, accelerator_of
from drivetrain_testing import check_accelerator


def test_cpu_keeps_the_contract():
    check_accelerator(accelerator_of("cpu"))


@pytest.mark.gpu
def test_cuda_keeps_the_contract():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    check_accelerator(accelerator_of("cuda"))


def test_type_without_devices_keeps_it():
    xpu = TorchAccelerator("xpu")
    check_accelerator(xpu, min_devices=0)
    with pytest.raises(AssertionError, match="of 1 devices, 0 are found"):
        check_accelerator(xpu)


NUMBERS = itertools.count()


def broken(**methods):
    """Returns the CPU with some methods of its own."""
    whole = type(accelerator_of("cpu"))
    return type("Broken", (whole,), methods)()


def facts_with(**fields):
    known = accelerator_of("cpu").facts

    def facts(self, index=0):
        return dataclasses.replace(known(index), **fields)

    return {"facts": facts}


@pytest.mark.parametrize(
    ("methods", "clause"),
    [
        ({"is_out_of_memory": lambda self, error: False}, "memory is out is seen"),
        ({"memory": lambda self, index=0: (2, 1)}, "free memory is a part"),
        ({"version": lambda self: 3}, "versions are text"),
        ({"is_capturing": lambda self: True}, "nothing is captured"),
        ({"rng_states": lambda self: []}, "each device has a state"),
        ({"set_rng_states": lambda self, states: None}, "brings its numbers back"),
        (facts_with(dtypes=("float64",)), "computes in float32"),
        (facts_with(collectives="none_such"), "torch.distributed has"),
        (facts_with(compiler="none_such"), "a backend of torch.compile"),
        (facts_with(type="cuda"), "of the accelerator's type"),
        (facts_with(dtypes=("float32", "bf16")), "names of torch's floating-point"),
        (facts_with(dtypes=("float32", "int8")), "names of torch's floating-point"),
        (facts_with(memory_bytes=1 << 60), "the memory there is"),
        ({"version": lambda self: str(next(NUMBERS))}, "stays what it is"),
    ],
)
def test_broken_accelerator_is_told(methods, clause):
    with pytest.raises(AssertionError, match=clause):
        check_accelerator(broken(**methods))
