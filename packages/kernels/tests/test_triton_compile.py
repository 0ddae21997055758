"""The Triton kernels are compiled for an H100 or H200 to machine code, without one.

Run as a program, this file compiles every variant and prints what came out of it. A
process of its own does it, since in that of the tests Triton interprets.
"""

import importlib
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

# The narrowest and the widest dtype, each as (tensors, sums).
DTYPES = {"bfloat16": ("bf16", "fp32"), "float64": ("fp64", "fp64")}


def norms(dtype, acc):
    """Returns name, module, kernel, pointers, numbers and constants of each variant."""
    off = {
        "OFFSET": 0.0,
        "KEEP_SCALE": 1.25,
        "CAST_FIRST": True,
        "HAS_WEIGHT": True,
        "DTYPE": dtype,
        "ACC": acc,
        "BLOCK": 4096,
    }
    kinds = {
        "rms": {"LAYER": False, "ADDS": False, "DROPS": False, "HAS_BIAS": False},
        "layer": {"LAYER": True, "ADDS": False, "DROPS": False, "HAS_BIAS": True},
        "dropout, add": {
            "LAYER": False,
            "ADDS": True,
            "DROPS": True,
            "HAS_BIAS": False,
        },
    }
    row = {"X", "RESIDUAL", "WEIGHT", "BIAS", "Y", "Z", "DY", "DZ_IN", "DZ", "DX"}
    for kind, flags in kinds.items():
        for name, more in (
            ("_forward_kernel", {"EPS": 1e-6}),
            ("_backward_kernel", {"STAGES": 3 if dtype == "bf16" else 1}),
        ):
            places = {"SEED": "*i64", **dict.fromkeys(row, f"*{dtype}")}
            places |= dict.fromkeys(("MEAN", "RSTD", "DW", "DB"), f"*{acc}")
            constants = off | flags | more
            yield f"{kind}, {name}", "_triton_norm", name, places, constants


def gated(dtype, acc):
    for kind in ("silu", "none", "tanh"):
        for name in ("_forward_kernel", "_backward_kernel"):
            constants = {"KIND": kind, "DTYPE": dtype, "ACC": acc, "BLOCK": 1024}
            yield f"{kind}, {name}", "_triton_gated", name, {}, constants


def rope(dtype, acc):
    tables = {"COS": f"*{acc}", "SIN": f"*{acc}"}
    sizes = {"HEADS": 32, "HALF": 64, "REST": 1, "DTYPE": dtype, "ACC": acc}
    for interleaved in (False, True):
        flags = {"INTERLEAVED": interleaved, "INVERSE": True, "HAS_REST": interleaved}
        yield f"rope, {interleaved}", "_triton_rope", "_kernel", tables, sizes | flags


def clip(dtype, acc):
    sizes = {"DTYPE": dtype, "ACC": acc, "CHUNK": 65536, "BLOCK": 2048}
    table = {"TABLE": "*i64", "OUT": f"*{acc}", "TOTAL": "*fp32"}
    yield "squares", "_triton_clip", "_squares_kernel", table, sizes
    more = {"MAX_NORM": 1.0, "EPS": 1e-6}
    yield "scale", "_triton_clip", "_scale_kernel", table, sizes | more


def moe(dtype, acc):
    sizes = {"DTYPE": dtype, "ACC": acc, "BLOCK": 4096}
    places = {"ROWS": "*i64", "TOKENS": "*i64", "WEIGHTS": f"*{acc}", "DOTS": f"*{acc}"}
    more = {"TOP_K": 8, "HAS_WEIGHTS": True}
    yield "moe, sum", "_triton_moe", "_sum_kernel", places, sizes | more
    yield "moe, spread", "_triton_moe", "_spread_kernel", places, sizes


def attention(dtype, acc):
    if dtype == "fp64":
        return  # not a product that tensor cores are asked for
    for masks in ("causal", "window, packed, capped"):
        rest = masks != "causal"
        constants = {
            "HEADS": 8,
            "GROUPS": 4,
            "HAS_LEFT": rest,
            "HAS_RIGHT": True,
            "PACKED": rest,
            "CAP": 30.0 if rest else 0.0,
            "HEAD": 128,
            "DTYPE": dtype,
            "DOT": dtype,
            "ACC": acc,
            "BLOCK_N": 64,
            "BLOCK_D": 128,
        }
        places = {"LSE": f"*{acc}", "DELTA": f"*{acc}", "CU_Q": "*i32", "CU_K": "*i32"}
        places["scale"] = "fp32"
        for name, rows in (
            ("forward_kernel", 128),
            ("backward_queries_kernel", 64),
            ("backward_keys_kernel", 64),
        ):
            module = "_triton_attention_kernels"
            yield (
                f"{masks}, {name}",
                module,
                name,
                places,
                constants | {"BLOCK_M": rows},
            )


def cross_entropy(dtype, acc):
    places = dict.fromkeys(("LOSS", "Z_LOSS", "LSE", "GRAD"), f"*{acc}")
    places["TARGET"] = "*i64"
    constants = {"SMOOTHING": 0.1, "ZETA": 1e-4, "CAP": 30.0, "ACC": acc, "BLOCK": 4096}
    more = {"HAS_GRAD": True, "DTYPE": dtype}
    module = "_triton_cross_entropy"
    yield "cross-entropy, forward", module, "_forward_kernel", places, constants
    yield (
        "cross-entropy, backward",
        module,
        "_backward_kernel",
        places,
        constants | more,
    )


def variants():
    return {
        f"{name}, {title}": (module, kernel, places, constants, dtype)
        for title, (dtype, acc) in DTYPES.items()
        for make in (norms, gated, rope, clip, moe, attention, cross_entropy)
        for name, module, kernel, places, constants in make(dtype, acc)
    }


VARIANTS = variants()


def compile_for_hopper(module, name, places, constants, dtype):
    """Compiles a kernel as a launch does; returns its machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from drivetrain_kernels._triton_blocks import TRITON_DTYPES

    kernel = getattr(importlib.import_module(f"drivetrain_kernels.ops.{module}"), name)
    dtypes = {str(found): found for found in TRITON_DTYPES.values()}
    values = {k: dtypes.get(v, v) for k, v in constants.items()}
    signature = {
        argument: "constexpr"
        if argument in values
        else places.get(argument, f"*{dtype}" if argument.isupper() else "i32")
        for argument in kernel.arg_names
    }
    signature |= {n: "i64" for n in signature if n == "num_kept_bits"}
    wide = constants.get("BLOCK", 0) > 2048 or "BLOCK_M" in constants
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=values),
        target=GPUTarget("cuda", 90, 32),
        options={
            "num_warps": 8 if wide else 4,
            "enable_fp_fusion": True,
        },
    )
    return compiled.asm


def usage(asm):
    """Returns registers and bytes of local memory of each thread, and its wide loads."""
    import triton

    cubin = asm["cubin"]

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    wide = len(re.findall(r"ld\.global\S*\.v[24]\.b32", asm["ptx"]))
    return {**{key: int(value) for key, value in found.items()}, "WIDE": wide}


def main():
    for variant, given in VARIANTS.items():
        print(json.dumps({"variant": variant, **usage(compile_for_hopper(*given))}))


@pytest.fixture(scope="module")
def compiled():
    found = compile_apart(__file__)
    if found is None:
        pytest.skip("this triton has no assembler for NVIDIA GPUs")
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_triton_kernels_become_machine_code_of_hopper(compiled, variant):
    found = compiled[variant]
    assert found["LOCAL"] == 0
    # A float64 division's slow path takes eight bytes of the stack; attention keeps whole
    # tiles in registers and spills some of them, the rest nothing.
    most = 512 if "BLOCK_M" in VARIANTS[variant][3] else 8
    assert found["STACK"] <= most, "registers spilled"


def test_gradients_that_are_clipped_are_read_in_vectors(compiled):
    """Though their addresses come from a table, of which the compiler knows nothing."""
    clipping = [name for name in VARIANTS if "_triton_clip" in VARIANTS[name]]
    assert clipping
    for name in clipping:
        if VARIANTS[name][4] == "bf16":
            assert compiled[name]["WIDE"] >= 2, name


if __name__ == "__main__":
    main()
