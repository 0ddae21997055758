"""The Triton kernels are compiled for an H100 or H200 to machine code, without one.

Run as a program, this file compiles every variant and prints what came out of it. A
process of its own does it, since in that of the tests Triton interprets.
"""

import importlib.util
import json
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from drivetrain_testing import compile_apart

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]

NUMBERS = 10
DTYPES = {
    "float32": ("fp32", "fp32", "fp32", False),
    "float64": ("fp64", "fp64", "fp64", False),
    "bfloat16": ("bf16", "bf16", "fp32", False),
    "all bfloat16": ("bf16", "bf16", "bf16", False),
    "float16": ("fp16", "fp16", "fp32", False),
    "bfloat16 with masters": ("bf16", "bf16", "fp32", True),
    "bfloat16, float32 gradients": ("bf16", "fp32", "fp32", False),
}
AGD_MODES = {
    "amsgrad and clip": {"AMSGRAD": True, "CLIPS": True},
    "stochastic": {"STOCHASTIC": True},
    "capturable": {"ON_DEVICE": 0b1001111100, "PER_ROW": 0b1111100},
}


def variants():
    """Returns name, kernel, constants and number of other arguments of each variant."""
    found = {}
    for name, (weight, grad, moment, master) in DTYPES.items():
        acc = "fp64" if weight == "fp64" else "fp32"
        places = {"ON_DEVICE": (1 << NUMBERS) - 1 if acc == "fp64" else 0, "PER_ROW": 0}
        common = {"WEIGHT": weight, "MOMENT": moment, "MASTER": master, "ACC": acc}
        off = {"AMSGRAD": False, "CLIPS": False, "STOCHASTIC": False}
        agd = {**common, **places, **off, "GRAD": grad}
        found[f"agd, {name}"] = ("agd_kernel", [], agd)
        if name in {"float32", "bfloat16"}:
            for mode, changed in AGD_MODES.items():
                if mode != "stochastic" or weight == "bf16":
                    found[f"agd, {name}, {mode}"] = ("agd_kernel", [], agd | changed)
        moments = {**common, **places, "GRAD": grad}
        found[f"lamb_moments, {name}"] = ("lamb_moments_kernel", [f"*{acc}"], moments)
        apply = {**common, **places, "ADAPTS": True, "STOCHASTIC": weight == "bf16"}
        found[f"lamb_apply, {name}"] = ("lamb_apply_kernel", ["*fp64"], apply)
        squares = {"GRAD": grad, "ACC": acc}
        found[f"grad_squares, {name}"] = ("grad_squares_kernel", [f"*{acc}"], squares)
    return found


def compile_for_hopper(name, others, constants):
    """Compiles a kernel as a launch does; returns what its machine code needs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from drivetrain_optim.fused import _triton_kernels, _triton_launch

    kernel = getattr(_triton_kernels, name)
    dtypes = {str(dtype): dtype for dtype in _triton_kernels.DTYPES.values()}
    arguments = [n for n in kernel.arg_names if not n.isupper()]
    types = ["*i64", "*i32", *others][: len(arguments)]
    on_device = constants.get("ON_DEVICE", 0)
    for place in range(len(arguments) - len(types)):
        types.append("*fp64" if on_device >> place & 1 else "fp32")
    signature = dict(zip(arguments, types, strict=True))
    sizes = {"BLOCK": _triton_launch._BLOCK, "NUM_BLOCKS": _triton_launch._NUM_BLOCKS}
    values = {k: dtypes.get(v, v) for k, v in constants.items()} | sizes
    signature |= dict.fromkeys(values, "constexpr")
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=values),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": _triton_launch._NUM_WARPS, "enable_fp_fusion": True},
    )
    return compiled.asm["ptx"], compiled.asm["cubin"]


def usage(cubin):
    """Returns registers and bytes of local memory of each thread."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return {key: int(value) for key, value in found.items()}


def main():
    for variant, (name, others, constants) in variants().items():
        ptx, cubin = compile_for_hopper(name, others, constants)
        wide = {
            "loads": len(re.findall(r"ld\.global\S*\.v[24]", ptx)),
            "stores": len(re.findall(r"st\.global\S*\.v[24]", ptx)),
        }
        print(json.dumps({"variant": variant, **usage(cubin), **wide}))


@pytest.fixture(scope="module")
def compiled():
    found = compile_apart(__file__)
    if found is None:
        pytest.skip("this triton has no assembler for NVIDIA GPUs")
    return found


@pytest.mark.parametrize("variant", variants())
def test_triton_kernels_become_machine_code_of_hopper(compiled, variant):
    found = compiled[variant]
    assert found["LOCAL"] == 0
    # A call of the slow path of a float64 division takes eight bytes of the stack.
    assert found["STACK"] <= (8 if "float64" in variant else 0), "registers spilled"
    # With more, too few threads would be in flight to keep the memory busy.
    assert found["REG"] <= (160 if "float64" in variant else 128)
    assert found["loads"] >= 1, "a full block is read four elements at a time"
    if "squares" not in variant:
        assert found["stores"] >= 1


if __name__ == "__main__":
    main()
