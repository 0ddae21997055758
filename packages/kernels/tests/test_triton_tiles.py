"""Attention's tiles fit the shared memory of each generation of GPUs, compiled without one.

Run as a program, this file prints what the compiler takes for each of them.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]

# By compute capability: the shared memory that a block may take.
LIMITS = {75: 65_536, 80: 166_912, 86: 101_376, 90: 232_448, 100: 232_448}
KERNELS = ("forward_kernel", "backward_queries_kernel", "backward_keys_kernel")
HEAD = 256


def shared_bytes(capability, name):
    """Returns the tiles of a kernel on a device, and the shared memory that they take."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from drivetrain_kernels._triton_blocks import TRITON_DTYPES
    from drivetrain_kernels.ops import _triton_attention
    from drivetrain_kernels.ops import _triton_attention_kernels as kernels
    from drivetrain_kernels.ops._triton_attention import _blocks

    number = capability

    class Facts:
        capability = (number // 10, number % 10)
        shared_memory_bytes = LIMITS[number]

    _triton_attention.device_facts = lambda device: Facts
    q = torch.empty(1, 64, 8, HEAD, dtype=torch.float16, device="meta")
    sizes = _blocks(q, is_backward=name != "forward_kernel")
    options = {key: sizes.pop(key) for key in ("num_warps", "num_stages")}
    narrow, wide = TRITON_DTYPES[torch.float16], TRITON_DTYPES[torch.float32]
    constants = {
        "HEADS": 8, "GROUPS": 2, "HAS_LEFT": True, "HAS_RIGHT": True, "PACKED": False,
        "CAP": 50.0, "HEAD": HEAD, "DTYPE": narrow, "DOT": narrow, "ACC": wide,
        "CU_Q": None, "CU_K": None, **sizes,
    }  # fmt: skip
    kernel = getattr(kernels, name)
    types = {"LSE": "*fp32", "DELTA": "*fp32", "scale": "fp32"}
    signature, hints = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            continue
        is_pointer = argument.isupper()
        signature[argument] = types.get(argument, "*fp16" if is_pointer else "i32")
        if is_pointer or argument.endswith(("_row", "_head", "_batch")):
            hints[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel, signature=signature, constexprs=constants, attrs=hints
    )
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options=options)
    return {**sizes, "shared": made.metadata.shared}


def main():
    for capability in LIMITS:
        for name in KERNELS:
            print(json.dumps([capability, name, shared_bytes(capability, name)]))


@pytest.fixture(scope="module")
def found():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    command = [sys.executable, __file__]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if "No such file or directory" in done.stderr:
        pytest.skip("this triton has no assembler for NVIDIA GPUs")
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {(capability, name): sizes for capability, name, sizes in lines}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("capability", LIMITS)
def test_attention_of_a_head_of_256_fits_each_generation(found, capability, name):
    assert 0 < found[capability, name]["shared"] <= LIMITS[capability]


def test_attention_has_large_tiles_where_they_fit(found):
    assert found[90, "backward_keys_kernel"]["BLOCK_N"] == 64
    assert found[86, "backward_keys_kernel"]["BLOCK_N"] == 32


if __name__ == "__main__":
    main()
