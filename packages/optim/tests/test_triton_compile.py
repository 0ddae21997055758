"""The Triton kernels are compiled to machine code as steps of the optimizers launch them.

Run as a program, this file makes the steps, for one kind of GPU, and prints what each
kernel needs there. A process of its own does it, since in that of the tests Triton
interprets.
"""

import argparse
import importlib.util
import json
from dataclasses import asdict
from unittest.mock import patch

import pytest
import torch

from drivetrain_optim import AGD, LAMB
from drivetrain_optim.batched import _layout
from drivetrain_optim.batched._paths import Choice
from drivetrain_optim.fused import _triton
from drivetrain_testing import compile_apart, triton_compiled_for

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]

CHOICE = Choice("triton", "what the CPU has stands for what the GPU has")
# The dtypes of weight and gradient, and options of both optimizers.
DTYPES = {
    "float32": (torch.float32, torch.float32, {}),
    "float64": (torch.float64, torch.float64, {}),
    "bfloat16": (torch.bfloat16, torch.bfloat16, {}),
    "all bfloat16": (torch.bfloat16, torch.bfloat16, {"state_dtype": None}),
    "float16": (torch.float16, torch.float16, {}),
    "bfloat16 with masters": (torch.bfloat16, torch.bfloat16, {"master_weights": True}),
    "bfloat16, float32 gradients": (torch.bfloat16, torch.float32, {}),
}
MODES = {
    "": {},
    ", norm of gradients": {"max_grad_norm": 1.0},
    ", capturable": {"capturable": True},
    ", stochastic": {"stochastic_rounding": True},
}
AGD_MODES = {**MODES, ", amsgrad and clip": {"amsgrad": True, "clip": 0.5}}


def steps():
    """Yields the title of a step, and a function that makes it."""
    for kind, modes in ((AGD, AGD_MODES), (LAMB, MODES)):
        for name, (weight, grad, options) in DTYPES.items():
            for mode, more in modes.items():
                rounds = "stochastic_rounding" in more
                if rounds and (
                    weight is not torch.bfloat16 or "master_weights" in options
                ):
                    continue
                given = {**options, **more}
                yield (
                    f"{kind.__name__}, {name}{mode}",
                    lambda kind=kind, weight=weight, grad=grad, given=given: step(
                        kind, weight, grad, given
                    ),
                )


def step(kind, weight, grad, options):
    param = torch.nn.Parameter(torch.zeros(4099, dtype=weight))
    if grad is not weight:
        param.grad_dtype = grad
    param.grad = torch.zeros(4099, dtype=grad)
    kind([param], lr=0.01, **options).step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("capability")
    parser.add_argument("--all", action="store_true", help="it is all in any case")
    capability = tuple(map(int, parser.parse_args().capability.split(".")))
    with triton_compiled_for(capability) as found:
        if capability < _triton._MIN_CAPABILITY:
            refused = _triton._find_reason(torch.device("cuda", 0))
            print(json.dumps({"variant": "all", "refused": refused}))
            return
        for title, make in steps():
            found.clear()
            with patch.object(_layout, "choose_path", lambda *_, **__: CHOICE):
                make()
            for number, code in enumerate(dict.fromkeys(found)):
                variant = f"{title}: {number} {code.kernel}"
                print(json.dumps({"variant": variant, **asdict(code)}), flush=True)


@pytest.fixture(scope="module")
def compiled():
    found = compile_apart(__file__, "9.0")
    if found is None:
        pytest.skip("this triton has no assembler for NVIDIA GPUs")
    return found


def test_every_kernel_becomes_machine_code_of_hopper(compiled):
    for title, _ in steps():
        assert any(name.startswith(f"{title}: ") for name in compiled), title
    for name, found in compiled.items():
        # A call of the slow path of a division takes eight bytes of the stack; so do
        # masters with Triton 3.6.
        most = 8 if "float64" in name or "masters" in name else 0
        assert found["stack_bytes"] <= most, f"{name}: registers spilled"
        # With more, too few threads would be in flight to keep the memory busy. Triton
        # 3.7 takes up to 147 where others take 128; float64 takes 160.
        assert found["registers"] <= 160, name
        if "sum_chunks" not in name:
            # A full block is read four elements at a time.
            assert found["wide_loads"] >= 1, name
            assert found["wide_stores"] >= ("squares" not in name), name


if __name__ == "__main__":
    main()
