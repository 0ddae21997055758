"""The parallel block against the sum of its parts, and its serial counterpart."""

import pytest
import torch
from kernel_checks import as_exact_as, normal, same
from torch.nn import functional

from drivetrain_kernels import (
    DtypeError,
    OptionError,
    ParallelBlock,
    SerialBlock,
    ShapeError,
    attention,
    parallel_block,
    rms_norm,
    rope,
)

IMPLS = ["fused", "accumulated", "reference"]
WIDTH, HEADS, KV_HEADS, INNER = 8, 4, 2, 12
ROWS = [8, 4, 4, INNER, INNER]


def tensors(batch=2, length=5):
    return normal(
        (batch, length, WIDTH), (WIDTH,), (sum(ROWS), WIDTH), (WIDTH, WIDTH + INNER)
    )


def call(*t, **options):
    return parallel_block(*t, num_heads=HEADS, num_kv_heads=KV_HEADS, **options)


def unfused(x, weight, w_in, w_out, norm=rms_norm, act=functional.silu, window=None):
    """Each part alone, and their sum."""
    normed = norm(x, weight)
    q, k, v, gate, up = (normed @ part.T for part in w_in.split(ROWS))
    q, k, v = (part.unflatten(-1, (-1, 2)) for part in (q, k, v))
    q, k = rope(q, k, impl="reference")
    heads = attention(q, k, v, window=window, impl="reference").flatten(-2)
    w_heads, w_hidden = w_out.split([WIDTH, INNER], 1)
    return x + heads @ w_heads.T + (act(gate) * up) @ w_hidden.T


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("window", [None, 2])
def test_parallel_block_is_the_sum_of_its_parts(impl, window):
    same(
        lambda *t: call(*t, window=window, impl=impl),
        lambda *t: unfused(*t, window=window),
        tensors(),
        rtol=1e-9,
        atol=1e-10,
    )


def test_parallel_block_takes_layer_norm_and_gelu():
    def norm(x, weight):
        return functional.layer_norm(x, (WIDTH,), weight, eps=1e-6)

    same(
        lambda *t: call(*t, norm="layer", activation="geglu"),
        lambda *t: unfused(
            *t, norm=norm, act=lambda g: functional.gelu(g, approximate="tanh")
        ),
        tensors(),
        rtol=1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("impl", ["fused", "accumulated"])
def test_parallel_block_is_as_exact_as_its_parts_in_bfloat16(impl):
    as_exact_as(lambda *t: call(*t, impl=impl), unfused, unfused, tensors(4, 16))


def test_parallel_block_takes_no_tokens():
    x, *weights = tensors(batch=0)
    assert call(x, *weights).shape == (0, 5, WIDTH)


def test_blocks_can_be_made_of_each_others_parts():
    torch.manual_seed(0)
    sizes = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "inner": INNER, "window": 3}
    serial, parallel = SerialBlock(WIDTH, **sizes), ParallelBlock(WIDTH, **sizes)
    assert parallel.options == serial.options
    parallel.load_parts(serial.parts())
    for name, part in parallel.parts().items():
        assert torch.equal(part, serial.parts()[name])
    back = SerialBlock(WIDTH, **serial.options)
    back.load_parts(parallel.parts())
    x = torch.randn(2, 5, WIDTH)
    assert torch.equal(back(x), serial(x))

    def count(block):
        return sum(p.numel() for p in block.parameters())

    assert count(serial) == count(parallel) + WIDTH  # its second norm


def test_serial_block_is_attention_then_mlp():
    torch.manual_seed(0)
    block = SerialBlock(WIDTH, num_heads=HEADS, num_kv_heads=KV_HEADS, inner=INNER)
    parts = block.parts()
    x = torch.randn(2, 5, WIDTH)
    normed = rms_norm(x)
    q, k, v = ((normed @ parts[n].T).unflatten(-1, (-1, 2)) for n in "qkv")
    middle = x + attention(*rope(q, k), v).flatten(-2) @ parts["o"].T
    normed = rms_norm(middle)
    hidden = functional.silu(normed @ parts["gate"].T) * (normed @ parts["up"].T)
    torch.testing.assert_close(block(x), middle + hidden @ parts["down"].T)


def test_parallel_block_module_runs_the_op_and_trains_every_parameter():
    torch.manual_seed(0)
    block = ParallelBlock(WIDTH, num_heads=2, rope_base=None)
    x = torch.randn(2, 3, WIDTH)
    y = block(x)
    wanted = parallel_block(
        x, block.norm, block.w_in, block.w_out, num_heads=2, rope_base=None
    )
    assert torch.equal(y, wanted)
    y.sum().backward()
    assert all(p.grad.any() for p in block.parameters())


@pytest.mark.parametrize("kind", [ParallelBlock, SerialBlock])
def test_blocks_run_under_autocast_and_keep_the_residual_wide(kind):
    torch.manual_seed(0)
    block = kind(WIDTH, num_heads=2)
    x = torch.randn(2, 3, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, block(x), rtol=0.1, atol=0.1)
    y.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in block.parameters())


@pytest.mark.slow
def test_parallel_block_compiles_without_a_break():
    x, *weights = (t.float() for t in tensors())
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, *weights), call(x, *weights))


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (
            OptionError,
            "num_heads must be a multiple of num_kv_heads",
            {"num_kv_heads": 3},
        ),
        (OptionError, "8 channels must be a multiple of the 3 heads", {"num_heads": 3}),
        (OptionError, "norm must be one of 'rms', 'layer'", {"norm": "batch"}),
        (OptionError, "activation must be one of", {"activation": "relu"}),
        (OptionError, "norm_bias goes with", {"norm_bias": torch.ones(WIDTH)}),
        (ShapeError, "w_in must have the shape", {"w_in": torch.ones(3, WIDTH)}),
        (
            ShapeError,
            "w_out must have more columns",
            {"w_out": torch.ones(WIDTH, WIDTH)},
        ),
        (ShapeError, "x must be", {"x": torch.ones(3, WIDTH)}),
        (
            DtypeError,
            "w_out must have the dtype",
            {"w_out": torch.ones(WIDTH, 20).half()},
        ),
    ],
    ids=str,
)
def test_parallel_block_refuses_what_does_not_fit(error, message, options):
    names = ("x", "norm_weight", "w_in", "w_out")
    given = dict(zip(names, (t.float() for t in tensors()), strict=True))
    with pytest.raises(error, match=f"^parallel_block: .*{message}"):
        parallel_block(**{"num_heads": HEADS, "num_kv_heads": None, **given, **options})


def test_blocks_refuse_heads_that_do_not_divide():
    with pytest.raises(OptionError, match=r"^SerialBlock: width must be a multiple"):
        SerialBlock(8, num_heads=3)
    with pytest.raises(OptionError, match=r"^ParallelBlock: .*got 8, 4 and 3"):
        ParallelBlock(8, num_heads=4, num_kv_heads=3)


@pytest.mark.parametrize("missing", ["x", "norm_weight", "w_in", "w_out"])
def test_parallel_block_refuses_what_is_no_tensor(missing):
    shapes = {"x": (1, 3, 8), "norm_weight": (8,), "w_in": (48, 8), "w_out": (8, 16)}
    call = {name: torch.ones(shape) for name, shape in shapes.items()}
    with pytest.raises(DtypeError, match=f"{missing} must be a tensor, got NoneType"):
        parallel_block(**{**call, missing: None}, num_heads=2)
