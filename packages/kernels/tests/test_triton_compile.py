"""The Triton kernels are compiled to machine code as calls of the ops launch them.

Run as a program, this file makes the calls, for one kind of GPU, and prints what each
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

import drivetrain_kernels as ops
from drivetrain_kernels import ImplementationError, _available
from drivetrain_testing import SHARED_MEMORY, compile_apart, triton_compiled_for

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
]

HOPPER = (9, 0)
# The narrowest and the widest dtype; with `--all`, those between as well.
DTYPES = (torch.bfloat16, torch.float64)
ALL_DTYPES = (*DTYPES, torch.float16, torch.float32)
COLUMNS = (4096,)
ALL_COLUMNS = (1024, 4096, 16_384, 32_768, 65_536)
HEADS = (128,)
ALL_HEADS = (64, 80, 128, 256)


def leaf(*shape, dtype):
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def norms(dtype, columns):
    x, residual = (leaf(8, columns, dtype=dtype) for _ in range(2))
    weight, bias = (leaf(columns, dtype=dtype) for _ in range(2))
    yield "rms_norm", lambda: ops.rms_norm(x, weight, impl="triton")
    yield "layer_norm", lambda: ops.layer_norm(x, weight, bias, impl="triton")
    dropped = ops.dropout_add_rms_norm
    yield "dropout_add_rms_norm", lambda: dropped(x, residual, weight, impl="triton")


def of_columns(dtype):
    gate, up = (leaf(8, 4096, dtype=dtype) for _ in range(2))
    yield "swiglu", lambda: ops.swiglu(gate, up, impl="triton")
    for kind in ("none", "tanh"):
        yield (
            f"geglu {kind}",
            lambda kind=kind: ops.geglu(gate, up, approximate=kind, impl="triton"),
        )
    q, k = (leaf(1, 8, heads, 128, dtype=dtype) for heads in (32, 8))
    for interleaved in (False, True):
        turned = {"interleaved": interleaved, "rotary_dim": 64 if interleaved else None}
        yield (
            f"rope {'neighbours' if interleaved else 'halves'}",
            lambda turned=turned: ops.rope(q, k, **turned, impl="triton"),
        )
    weight = leaf(1 << 17, dtype=dtype)
    weight.grad = torch.ones_like(weight)
    yield "clip", lambda: ops.clip_grad_norm_([weight], 0.1, impl="triton")
    experts = [leaf(4, 64, 512, dtype=dtype) for _ in range(2)]
    yield (
        "moe",
        lambda: ops.moe(
            leaf(16, 512, dtype=dtype),
            leaf(4, 512, dtype=dtype),
            *experts,
            leaf(4, 512, 64, dtype=dtype),
            top_k=2,
            impl="triton",
        ),
    )


def losses(dtype):
    options = {"label_smoothing": 0.1, "z_loss": 1e-4, "softcap": 30.0}
    logits, target = leaf(4, 128_256, dtype=dtype), torch.zeros(4, dtype=torch.int64)
    for title, given in (("", {}), (", all options", options)):
        yield (
            f"cross_entropy{title}",
            lambda given=given: ops.cross_entropy(
                logits, target, **given, impl="triton"
            ),
        )
    hidden, head = leaf(4, 64, dtype=dtype), leaf(128_256, 64, dtype=dtype)
    yield (
        "linear_cross_entropy",
        lambda: ops.linear_cross_entropy(hidden, head, target, impl="triton"),
    )


def attention(dtype, head):
    if dtype is torch.float64:
        return  # not a product that tensor cores are asked for
    q, k, v = (leaf(1, 256, heads, head, dtype=dtype) for heads in (8, 2, 2))
    offsets = torch.tensor([0, 100, 256], dtype=torch.int32)
    packed = {"cu_seqlens_q": offsets, "max_seqlen": 156}
    yield "attention causal", lambda: ops.attention(q, k, v, impl="triton")
    many = torch.arange(0, 257, 16, dtype=torch.int32)
    yield (
        "attention packed, of any length",
        lambda: ops.attention(q[0], k[0], v[0], cu_seqlens_q=many, impl="triton"),
    )
    yield (
        "attention window, packed, capped",
        lambda: ops.attention(
            q[0], k[0], v[0], window=64, softcap=30.0, **packed, impl="triton"
        ),
    )


def calls(*, is_whole=False):
    """Yields the title of a call, and a function that makes it."""
    for dtype in ALL_DTYPES if is_whole else DTYPES:
        name = str(dtype).removeprefix("torch.")
        for columns in ALL_COLUMNS if is_whole else COLUMNS:
            for title, call in norms(dtype, columns):
                yield f"{title} {columns}, {name}", call
        for make in (of_columns, losses):
            for title, call in make(dtype):
                yield f"{title}, {name}", call
        for head in ALL_HEADS if is_whole else HEADS:
            for title, call in attention(dtype, head):
                yield f"{title} {head}, {name}", call


def backward(result):
    found = [getattr(result, "output", None)] if not isinstance(result, tuple) else []
    found = [result] if found == [None] else found or list(result)
    tensors = [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.autograd.backward(tensors, [torch.zeros_like(t) for t in tensors])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("capability")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    capability = tuple(map(int, arguments.capability.split(".")))
    with triton_compiled_for(capability) as found:
        refused = _available.triton_missing("cpu")
        if refused:
            print(json.dumps({"variant": "all", "refused": refused}))
            return
        for title, call in calls(is_whole=arguments.all):
            found.clear()
            # What lies on the CPU stands for what lies on the GPU.
            with patch.object(_available, "triton_interprets", lambda: True):
                try:
                    backward(call()) if "clip" not in title else call()
                except ImplementationError as error:
                    print(json.dumps({"variant": title, "refused": str(error)}))
            for number, code in enumerate(dict.fromkeys(found)):
                variant = f"{title}: {number} {code.kernel}"
                print(json.dumps({"variant": variant, **asdict(code)}), flush=True)


@pytest.fixture(scope="module")
def compiled():
    found = compile_apart(__file__, "9.0")
    if found is None:
        pytest.skip("this triton has no assembler for NVIDIA GPUs")
    return found


def test_every_triton_form_becomes_machine_code_of_hopper(compiled):
    for title, _ in calls():
        assert any(name.partition(": ")[0] == title for name in compiled), title
    refused = {name for name, found in compiled.items() if "refused" in found}
    assert refused == {"moe, float64"}
    for name, found in compiled.items():
        if name in refused:
            continue
        # A float64 division's slow path takes eight bytes of the stack; attention keeps
        # whole tiles in registers and spills some of them, the rest nothing.
        most = 512 if name.startswith("attention") else 8
        assert found["stack_bytes"] <= most, f"{name}: registers spilled"
        assert found["shared_bytes"] <= SHARED_MEMORY[HOPPER], name


def test_gradients_that_are_clipped_are_read_in_vectors(compiled):
    """Though their addresses come from a table, of which the compiler knows nothing."""
    found = [one for name, one in compiled.items() if name.startswith("clip, bf")]
    assert {one["kernel"] for one in found} == {"_squares_kernel", "_scale_kernel"}
    assert all(one["wide_loads"] >= 2 for one in found)


def test_device_is_asked_once_for_all_launches():
    """Each answer of an accelerator is another object, and takes longer than a launch."""
    from drivetrain_kernels._triton_blocks import device_facts

    assert device_facts(torch.device("cpu")) is device_facts(torch.device("cpu"))


if __name__ == "__main__":
    main()
