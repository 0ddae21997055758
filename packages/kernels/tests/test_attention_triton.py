"""The Triton kernels of attention, interpreted or on a GPU."""

import os

import pytest
import torch
from attention_cases import PACKED, TOKENS, qkv
from kernel_checks import as_exact_as, normal, outcome, same

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.interpreter,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"
    ),
]

from drivetrain_kernels import ImplementationError, OptionError, attention

CASES = [
    ((70, 70), (2, 2), {}),
    ((70, 70), (4, 2), {"window": 9}),
    ((33, 70), (2, 1), {"causal": False, "window": (3, 40), "softcap": 2.0}),
    ((70, 33), (2, 1), {"window": 20}),
    ((40, 70), (2, 1), {"causal": False, "softcap": 2.0}),
    ((1, 65), (2, 1), {"window": 3}),
    ((40, 40), (1, 1), {"causal": False, "window": (None, 3), "scale": 0.3}),
]


def forms(**options):
    return (
        lambda *t: attention(*t, impl="triton", **options),
        lambda *t: attention(*t, impl="reference", **options),
    )


@pytest.mark.parametrize(("sizes", "heads", "options"), CASES, ids=str)
def test_attention_kernels_equal_the_reference_in_float64(sizes, heads, options):
    same(*forms(**options), qkv(*sizes, heads, batch=1, dim=20), rtol=1e-11, atol=1e-12)


def test_attention_kernels_take_a_batch_and_strides():
    same(
        lambda q, k, v: forms(window=5)[0](*(t.transpose(1, 2) for t in (q, k, v))),
        lambda q, k, v: forms(window=5)[1](*(t.transpose(1, 2) for t in (q, k, v))),
        normal((2, 2, 20, 8), (2, 1, 20, 8), (2, 1, 20, 8)),
    )
    same(
        lambda q, k, v: forms()[0](*(t.transpose(1, 3) for t in (q, k, v))),
        lambda q, k, v: forms()[1](*(t.transpose(1, 3) for t in (q, k, v))),
        normal(*((1, 8, 2, 20),) * 3),
    )


@pytest.mark.parametrize(
    "options", [{}, {"window": 7}, {"causal": False, "softcap": 2.0}], ids=str
)
def test_attention_kernels_keep_packed_sequences_apart(options):
    same(
        *forms(cu_seqlens_q=PACKED, max_seqlen=35, **options),
        qkv(TOKENS, TOKENS, (2, 1), batch=None),
    )


def test_attention_kernels_take_other_lengths_of_packed_keys():
    cu_q, cu_k = torch.tensor([0, 4, 12]), torch.tensor([0, 3, 20], dtype=torch.int32)
    same(
        *forms(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k),
        qkv(12, 20, batch=None),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_kernels_are_as_exact_as_the_reference(dtype):
    triton, reference = forms(window=40)
    as_exact_as(
        triton, reference, reference, qkv(65, 65, (2, 1), batch=1, dim=32), dtype
    )


@pytest.mark.parametrize(
    "sizes", [{"batch": 0}, {"num_queries": 0}, {"num_keys": 0}], ids=str
)
def test_attention_kernels_of_nothing(sizes):
    q, k, v = qkv(**sizes)
    out = attention(q.requires_grad_(), k, v, impl="triton")
    assert torch.equal(out, torch.zeros_like(q))
    out.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))


@pytest.mark.filterwarnings("ignore:.*NaN")
def test_attention_kernels_load_no_block_outside_the_window():
    q, k, v = qkv(128, 128, (1, 1), batch=1)
    k[:, :64] = v[:, :64] = float("nan")  # two blocks, which the last block never sees
    out = attention(q, k, v, window=32, impl="triton")
    assert not out[:, 96:].isnan().any()
    assert out[:, :64].isnan().any()


def test_attention_kernels_repeat_every_bit():
    triton, _ = forms(window=9)
    tensors = qkv(40, 40, (4, 2), batch=1, dtype=torch.float32)
    assert all(map(torch.equal, outcome(triton, tensors), outcome(triton, tensors)))


def test_attention_kernels_are_operators_that_compile():
    from drivetrain_kernels.ops import _triton_attention as module

    q, k, v = (t.requires_grad_() for t in qkv(20, 20, (2, 1), 1, dtype=torch.float32))
    torch.library.opcheck(module._forward, (q, k, v, None, None, 0, 5, 0, 0.3, 0.0))
    triton, _ = forms(window=5)
    same(
        torch.compile(triton, fullgraph=True, backend="aot_eager"),
        triton,
        qkv(20, 20, (2, 1), batch=1),
    )


def test_attention_kernels_refuse_dropout():
    with pytest.raises(ImplementationError, match=r"'triton'.*has no dropout"):
        attention(*qkv(), dropout_p=0.5, impl="triton")


def test_attention_kernels_take_more_heads_of_sequences_than_a_grid_has_columns(
    monkeypatch,
):
    """CUDA takes 65,535 programs on the second axis of a grid, and 2^31 - 1 on the first."""
    from triton.runtime import interpreter

    grids = []

    def launch(self, *args, **kwargs):
        grids.append(self.grid(kwargs) if callable(self.grid) else self.grid)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)
    num_sequences, heads = 2100, 32
    q = torch.randn(num_sequences, heads, 16, requires_grad=True)
    k = torch.randn(num_sequences, 8, 16)
    offsets = torch.arange(num_sequences + 1, dtype=torch.int32)
    out = attention(q, k, k, cu_seqlens_q=offsets, max_seqlen=1, impl="triton")
    out.sum().backward()
    assert grids == [(67_200,), (67_200,), (16_800,)]


# Empty ones, ones that end at the border of a block of 32 and beside it, and tokens that
# belong to none.
LENGTHS = [0, 5, 0, 33, 64, 1, 31, 32, 100, 0, 7]


@pytest.mark.parametrize(
    "options", [{}, {"window": 7}, {"causal": False, "softcap": 2.0}], ids=str
)
def test_attention_kernels_find_the_sequences_of_blocks(options, monkeypatch):
    from drivetrain_kernels.ops import _triton_attention as module

    made, grid = [], module._grid

    def keep(*given):
        made.append(grid(*given))
        return made[-1]

    monkeypatch.setattr(module, "_grid", keep)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    tokens = int(offsets[-1]) + 40
    # Without a bound, each sequence could be as long as all of them.
    same(
        *forms(cu_seqlens_q=offsets, **options),
        qkv(tokens, tokens, (2, 1), batch=None),
    )
    assert all(one.num_sharing == len(LENGTHS) for one in made)
    assert {one.programs for one in made} == {2 * (9 + 11), 9 + 11}


def test_attention_kernels_find_blocks_of_other_lengths_of_keys():
    cu_q, cu_k = (
        torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        for lengths in (LENGTHS, LENGTHS[::-1])
    )
    tokens = int(cu_q[-1])
    same(
        *forms(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=False),
        qkv(tokens, tokens, (2, 1), batch=None),
    )


def test_attention_kernels_refuse_more_programs_than_a_grid_has():
    from drivetrain_kernels.ops._triton_attention import _grid

    tokens = torch.empty(1_000_000, 32, 1, device="meta")
    offsets = torch.empty(100_001, device="meta")
    assert _grid(tokens, offsets, 256, 128) == (6_400_000, 2, 0)
    # Counted by the tokens: 7,812 blocks, and one more for each sequence.
    wanted = (107_812 * 32, 107_812, 100_000)
    assert _grid(tokens, offsets, 1_000_000, 128) == wanted
    batch = torch.empty(100_000, 100_000, 32, 1, device="meta")
    with pytest.raises(OptionError, match="split the batch"):
        _grid(batch, None, 0, 128)


class Refusing:
    """A kernel that does not fit with tiles of more than so many rows."""

    def __init__(self, kernel, most):
        self.kernel, self.most, self.tried = kernel, most, []

    def __getitem__(self, grid):
        def launch(*args, **constants):
            from triton.runtime.errors import OutOfResources

            self.tried.append(constants["BLOCK_M"])
            if constants["BLOCK_M"] > self.most:
                raise OutOfResources(205_312, 101_376, "shared memory")
            return self.kernel[grid](*args, **constants)

        return launch


@pytest.mark.parametrize("most", [16, 8])
def test_attention_kernels_take_smaller_tiles_where_the_first_do_not_fit(
    monkeypatch, most
):
    from drivetrain_kernels.ops import _triton_attention as module

    monkeypatch.setattr(module, "_halvings", {})
    names = ("forward_kernel", "backward_queries_kernel", "backward_keys_kernel")
    kernels = [Refusing(getattr(module, name), most) for name in names]
    for name, kernel in zip(names, kernels, strict=True):
        monkeypatch.setattr(module, name, kernel)
    tensors = qkv(40, 40, (2, 1), batch=1)
    if most < 16:
        with pytest.raises(
            ImplementationError, match=r"heads of 8 on cpu.*name another"
        ):
            forms()[0](*tensors)
        return
    for _ in range(2):
        same(*forms(), tensors)
    # It is tried once, and known from then on.
    assert [kernel.tried for kernel in kernels] == [[32, 16, 16]] * 3
