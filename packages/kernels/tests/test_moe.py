"""The mixture of experts against a plain loop, and its parts alone."""

import pytest
import torch
from kernel_checks import as_exact_as, normal, same
from torch.nn import functional

from drivetrain_kernels import (
    DtypeError,
    ImplementationError,
    MoE,
    OptionError,
    ShapeError,
    explain,
    moe,
)
from drivetrain_kernels.ops._moe_gemm import grouped_gemm, split_gemm
from drivetrain_kernels.ops._moe_permute import (
    combine_rows,
    gather_tokens,
    permute,
    sort_by_expert,
    unpermute,
)
from drivetrain_kernels.ops._moe_route import route

IMPLS = ["grouped_mm", "split", "reference"]


def tensors(num_tokens=12, width=8, inner=16, num_experts=4):
    shapes = (
        (num_tokens, width),
        (num_experts, width),
        (num_experts, inner, width),
        (num_experts, inner, width),
        (num_experts, width, inner),
    )
    return normal(*shapes)


def plain(x, router, gate, up, down, top_k, normalize=True, act=torch.softmax):
    """One token after the other, one expert after the other."""
    rows = []
    for token in x:
        scores = act(router @ token, dim=-1)
        weights, experts = scores.topk(top_k)
        if normalize:
            weights = weights / weights.sum()
        row = torch.zeros_like(token)
        for weight, e in zip(weights, experts, strict=True):
            row = row + weight * (
                down[e] @ (functional.silu(gate[e] @ token) * (up[e] @ token))
            )
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_moe_equals_a_loop_over_tokens(impl, top_k):
    dtype, close = torch.float64, {"rtol": 1e-10, "atol": 1e-11}
    if impl == "grouped_mm":
        dtype, close = torch.float32, {"rtol": 1e-4, "atol": 1e-4}
    same(
        lambda *t: moe(*t, top_k=top_k, impl=impl).output,
        lambda *t: plain(*t, top_k),
        [t.to(dtype) for t in tensors()],
        **close,
    )


@pytest.mark.parametrize("normalize", [True, False])
def test_moe_scores_by_sigmoid(normalize):
    def sigmoid(logits, dim):
        return logits.sigmoid()

    same(
        lambda *t: moe(*t, top_k=2, scores="sigmoid", normalize=normalize).output,
        lambda *t: plain(*t, 2, normalize=normalize, act=sigmoid),
        tensors(),
        rtol=1e-10,
        atol=1e-11,
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_moe_takes_experts_without_tokens(impl):
    x, router, *experts = (t.float() for t in tensors())
    router = torch.zeros_like(router)
    router[2] = 1.0
    x = x.abs()  # so that expert 2 takes all
    leaves = [t.clone().requires_grad_() for t in experts]
    found = moe(x, router, *leaves, top_k=1, impl=impl)
    assert found.counts.tolist() == [0, 0, 12, 0]
    wanted = plain(x, router, *experts, 1)
    torch.testing.assert_close(found.output, wanted, rtol=1e-4, atol=1e-4)
    found.output.sum().backward()
    for leaf in leaves:
        assert not leaf.grad[[0, 1, 3]].any()
        assert leaf.grad[2].any()


@pytest.mark.parametrize("impl", IMPLS)
def test_moe_takes_no_tokens(impl):
    leaves = [t.float().requires_grad_() for t in tensors(num_tokens=0)]
    found = moe(*leaves, top_k=2, impl=impl)
    assert found.output.shape == (0, 8)
    assert found.balance_loss == 0
    assert found.z_loss == 0
    found.output.sum().backward()
    assert all(not leaf.grad.any() for leaf in leaves[2:])


def test_moe_is_as_exact_as_the_loop_in_bfloat16():
    x, *weights = tensors(64, 32, 64)
    # The same choice of experts in every dtype: a router of few digits.
    router = weights[0].mul(4).round()
    x = x.mul(4).round() / 4
    for impl in ("split", "grouped_mm"):
        as_exact_as(
            lambda x, *w, i=impl: (
                moe(x, router.to(x.dtype), *w, top_k=2, impl=i).output
            ),
            lambda x, *w: (
                moe(x, router.to(x.dtype), *w, top_k=2, impl="reference").output
            ),
            lambda x, *w: moe(x, router, *w, top_k=2, impl="reference").output,
            [x, *weights[1:]],
        )


@pytest.mark.parametrize("impl", IMPLS)
def test_moe_drops_assignments_beyond_the_capacity(impl):
    given = [t.float() for t in tensors()]
    whole = moe(*given, top_k=2, impl=impl)
    same_again = moe(*given, top_k=2, capacity=12, impl=impl)
    assert torch.equal(whole.output, same_again.output)
    few = moe(*given, top_k=2, capacity=1, impl=impl)
    assert torch.equal(few.counts, whole.counts)
    # Four experts take one assignment each, so that at most four tokens get something.
    assert (few.output.abs().sum(-1) > 0).sum() <= 4
    assert torch.equal(few.output[0], whole.output[0])


def test_router_losses_tell_even_from_uneven_use():
    logits = torch.eye(4).repeat(5, 1) * 50
    even = route(logits, torch.eye(4), 1)
    torch.testing.assert_close(even.balance_loss, torch.tensor(1.0))
    uneven = route(logits[:1].expand(20, 4), torch.eye(4), 1)
    torch.testing.assert_close(uneven.balance_loss, torch.tensor(4.0))
    torch.testing.assert_close(uneven.z_loss, torch.tensor(2500.0))
    flat = route(torch.zeros(3, 4), torch.eye(4), 2, scores="sigmoid", normalize=False)
    torch.testing.assert_close(flat.weights, torch.full((3, 2), 0.5))
    torch.testing.assert_close(flat.balance_loss, torch.tensor(1.0))


def test_order_is_stable_and_its_inverse_is_right():
    experts = torch.tensor([[2, 0], [0, 1], [2, 1]])
    order = sort_by_expert(experts, torch.tensor([2, 2, 2]))
    assert order.tokens.tolist() == [0, 1, 1, 2, 0, 2]
    assert order.ends.tolist() == [2, 4, 6]
    assert torch.equal(order.tokens[order.rows], torch.arange(3)[:, None].expand(3, 2))


def test_permute_and_unpermute_have_right_gradients():
    experts = torch.tensor([[2, 0], [0, 1], [2, 1]])
    order = sort_by_expert(experts, torch.tensor([2, 2, 2]))
    x, weights = (t.requires_grad_() for t in normal((3, 4), (3, 2)))
    assert torch.autograd.gradcheck(
        lambda x, w: unpermute(permute(x, order).sin(), w, order), (x, weights)
    )


@pytest.mark.parametrize("gemm", [grouped_gemm, split_gemm])
def test_grouped_gemm_equals_a_product_for_each_group(gemm):
    ends = torch.tensor([3, 3, 7], dtype=torch.int32)

    def loop(x, w):
        return torch.cat([x[:3] @ w[0].T, x[3:3] @ w[1].T, x[3:] @ w[2].T])

    given = normal((7, 4), (3, 8, 4), dtype=torch.float32)
    same(lambda x, w: gemm(x, w, ends), loop, given)
    leaves = [t.requires_grad_() for t in given]
    gemm(*leaves, ends).sum().backward()  # an expanded gradient


def test_moe_operators_pass_opcheck():
    x, w, weights = (t.requires_grad_() for t in normal((3, 4), (2, 5, 4), (3, 1)))
    order = sort_by_expert(torch.tensor([[1], [0], [1]]), torch.tensor([1, 2]))
    places = (order.tokens, order.rows)
    torch.library.opcheck(split_gemm, (x, w, order.ends))
    wide = [t.float() for t in normal((3, 4), (2, 8, 4))]
    torch.library.opcheck(grouped_gemm, (*wide, order.ends))
    torch.library.opcheck(gather_tokens, (x, *places, False))
    torch.library.opcheck(combine_rows, (x, weights, *places, False))


@pytest.mark.parametrize("impl", ["grouped_mm", "split"])
def test_moe_compiles_without_a_break(impl):
    def step(*t):
        return moe(*t, top_k=2, impl=impl).output

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    same(compiled, step, [t.float() for t in tensors()])


def test_moe_runs_under_autocast():
    torch.manual_seed(0)
    layer = MoE(8, 16, num_experts=4, top_k=2)
    x = torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)
    assert found.output.dtype == torch.bfloat16
    assert torch.equal(found.counts, layer(x.bfloat16().float()).counts)
    found.output.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


def test_moe_module_holds_what_the_op_takes():
    torch.manual_seed(0)
    layer = MoE(8, 16, num_experts=4, top_k=2)
    x = torch.randn(2, 3, 8)
    found = layer(x)
    wanted = moe(x, layer.router, layer.w_gate, layer.w_up, layer.w_down, top_k=2)
    assert torch.equal(found.output, wanted.output)
    assert [tuple(p.shape) for p in layer.parameters()] == [
        (4, 8),
        (4, 16, 8),
        (4, 16, 8),
        (4, 8, 16),
    ]
    (found.output.square().mean() + 0.01 * found.balance_loss + found.z_loss).backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_explain_tells_why_not_grouped_mm():
    narrow = tensors(width=3)
    assert "takes no float64" in str(explain(moe, *narrow, top_k=1))
    odd = [t.float() for t in narrow]
    assert "multiples of 16 bytes" in str(explain(moe, *odd, top_k=1))
    with pytest.raises(ImplementationError, match="multiples of 16 bytes"):
        moe(*odd, top_k=1, impl="grouped_mm")


@pytest.mark.parametrize(
    ("error", "message", "position", "value", "options"),
    [
        (ShapeError, "w_gate", 2, torch.ones(16, 8), {}),
        (ShapeError, "w_down must have the shape", 4, torch.ones(4, 16, 8), {}),
        (ShapeError, "router_weight must have", 1, torch.ones(5, 8), {}),
        (DtypeError, "w_up must have the dtype", 3, torch.ones(4, 16, 8).half(), {}),
        (
            OptionError,
            "top_k must be from 1 to the 4 experts, got 5",
            0,
            None,
            {"top_k": 5},
        ),
        (OptionError, "top_k must be", 0, None, {"top_k": 0}),
        (OptionError, "scores must be one of", 0, None, {"scores": "tanh"}),
        (OptionError, "capacity must be >= 1", 0, None, {"capacity": 0}),
    ],
    ids=str,
)
def test_moe_refuses_what_does_not_fit(error, message, position, value, options):
    given = [t.float() for t in tensors()]
    if value is not None:
        given[position] = value
    with pytest.raises(error, match=f"^moe: .*{message}"):
        moe(*given, **{"top_k": 2, **options})


def test_moe_of_sigmoids_that_are_zero_is_finite():
    x = torch.ones(3, 4, requires_grad=True)
    router = torch.full((2, 4), -100.0, requires_grad=True)
    up, down = torch.ones(2, 8, 4), torch.ones(2, 4, 8)
    result = moe(x, router, up, up, down, top_k=1, scores="sigmoid")
    (result.output.sum() + result.balance_loss).backward()
    for tensor in (result.output, x.grad, router.grad):
        assert torch.isfinite(tensor).all()


def test_moe_under_transforms_is_the_reference():
    x, router, up, down = normal((3, 4), (2, 4), (2, 8, 4), (2, 4, 8))

    def total(w):
        return moe(x, router, w, up, down, top_k=1).output.sum()

    leaf = up.clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(torch.func.grad(total)(up), leaf.grad)


@pytest.mark.parametrize("name", ["top_k", "capacity"])
def test_moe_refuses_numbers_that_are_not_whole(name):
    x, router, up, down = normal((3, 4), (2, 4), (2, 8, 4), (2, 4, 8))
    with pytest.raises(OptionError, match=f"{name} must be a whole number, got 1.5"):
        moe(x, router, up, up, down, **{"top_k": 1, name: 1.5})
