"""Rotary embeddings on torch's operators."""

import pytest
import torch
from kernel_checks import as_exact_as, normal, outcome
from torch._subclasses import FakeTensorMode

from drivetrain_kernels import (
    DeviceError,
    DtypeError,
    IndexRangeError,
    OptionError,
    RotaryEmbedding,
    ShapeError,
    rope,
)
from drivetrain_kernels.ops._rope_tables import packed_positions, rope_tables


def rotated(x_SHD, interleaved, width, positions=None):
    """By complex numbers, one position after the other."""
    out = x_SHD.clone()
    for row, x_HD in enumerate(x_SHD):
        place = row if positions is None else int(positions[row])
        for i in range(width // 2):
            one, other = (2 * i, 2 * i + 1) if interleaved else (i, i + width // 2)
            angle = torch.tensor(place * 10000.0 ** (-2 * i / width))
            turned = torch.complex(x_HD[:, one], x_HD[:, other]) * torch.exp(1j * angle)
            out[row, :, one], out[row, :, other] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [8, 6, 2])
def test_rope_turns_pairs_by_the_angle_of_their_position(interleaved, width):
    q, k = normal((1, 5, 3, 8), (1, 5, 1, 8))
    found = rope(q, k, interleaved=interleaved, rotary_dim=width)
    for ours, x in zip(found, (q, k), strict=True):
        wanted = rotated(x[0], interleaved, width)[None]
        torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-6)


def test_rope_of_packed_sequences_counts_each_from_zero():
    q, k = normal((7, 2, 4), (7, 1, 4))
    cu_seqlens = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    places = packed_positions(cu_seqlens, 7)
    assert places.tolist() == [0, 1, 2, 0, 1, 2, 3]
    found = rope(q, k, cu_seqlens=cu_seqlens)
    given = rope(q, k, positions=places)
    tables = rope(
        q, k, *rope_tables(torch.arange(9), 4, wide=True), cu_seqlens=cu_seqlens
    )
    for ours, x, a, b in zip(found, (q, k), given, tables, strict=True):
        torch.testing.assert_close(
            ours, rotated(x, False, 4, places), rtol=1e-6, atol=1e-6
        )
        assert torch.equal(ours, a)
        assert torch.equal(ours, b)


def test_rope_takes_tables_of_each_token_or_each_position():
    q, k = normal((2, 3, 2, 4), (2, 3, 2, 4))
    positions = torch.tensor([[4, 5, 6], [0, 1, 9]])
    wanted = rope(q, k, positions=positions)
    cos, sin = rope_tables(positions, 4, wide=True)
    by_token = rope(q, k, cos, sin)
    every = rope_tables(torch.arange(10), 4, wide=True)
    by_position = rope(q, k, *every, positions=positions)
    for one, other, third in zip(wanted, by_token, by_position, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_rope_keeps_lengths_and_what_is_beyond_the_rotated_columns():
    q, k = normal((2, 3, 2, 8), (2, 3, 1, 8))
    for ours, x in zip(rope(q, k, rotary_dim=4), (q, k), strict=True):
        torch.testing.assert_close(ours.norm(dim=-1), x.norm(dim=-1))
        assert torch.equal(ours[..., 4:], x[..., 4:])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_has_right_gradients(interleaved):
    q, k = (t.requires_grad_() for t in normal((1, 2, 1, 4), (1, 2, 1, 4)))
    assert torch.autograd.gradcheck(
        lambda q, k: rope(q, k, interleaved=interleaved), (q, k)
    )


def test_rope_gives_gradients_of_trained_tables():
    q, k = normal((1, 2, 1, 4), (1, 2, 1, 4))
    cos, sin = (t.requires_grad_() for t in normal((2, 2), (2, 2)))
    assert torch.autograd.gradcheck(lambda c, s: rope(q, k, c, s), (cos, sin))


def test_rope_is_as_exact_as_the_plain_path_in_bfloat16():
    table = rope_tables(torch.arange(9), 16)

    def plain(q, k):
        cos, sin = (torch.cat((t, t), -1)[:, None].to(q.dtype) for t in table)

        def turn(x):
            one, other = x.chunk(2, -1)
            return x * cos + torch.cat((-other, one), -1) * sin

        return turn(q), turn(k)

    as_exact_as(rope, plain, rope, normal((2, 9, 4, 16), (2, 9, 2, 16)))


@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4)])
def test_rope_takes_nothing(shape):
    for one in outcome(rope, normal(shape, shape)):
        assert one.shape == shape


def test_rotary_embedding_has_the_tables_of_any_length():
    q, k = normal((1, 9, 2, 4), (1, 9, 2, 4))
    module = RotaryEmbedding(4)
    assert not module.state_dict()
    for length in (3, 9, 5):
        for one, other in zip(
            module(q[:, :length], k[:, :length]),
            rope(q[:, :length], k[:, :length]),
            strict=True,
        ):
            assert torch.equal(one, other)
    packed = module(q[0], k[0], cu_seqlens=torch.tensor([0, 4, 9]))
    assert torch.equal(
        packed[0], rope(q[0], k[0], cu_seqlens=torch.tensor([0, 4, 9]))[0]
    )


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (OptionError, "rotary_dim must be even", {"rotary_dim": 3}),
        (OptionError, "from 2 to the head_dim, 4, got 6", {"rotary_dim": 6}),
        (OptionError, "both cos and sin", {"cos": torch.ones(3, 2)}),
        (OptionError, "base must be a finite number > 0", {"base": 0.0}),
        (OptionError, "base must be a number, got 'x'", {"base": "x"}),
        (OptionError, "rotary_dim must be a whole number", {"rotary_dim": 2.0}),
        (DtypeError, "positions must be a tensor", {"positions": [0, 1, 2]}),
        (ShapeError, "k must have the shape", {"k": torch.ones(2, 4, 1, 4)}),
        (ShapeError, "q must be", {"q": torch.ones(4)}),
        (
            ShapeError,
            r"cos must have the shape \(3, 2\) or \(2, 3, 2\), got \(3, 4\)",
            {"cos": torch.ones(3, 4), "sin": torch.ones(3, 4)},
        ),
        (ShapeError, "positions must have the shape", {"positions": torch.arange(4)}),
        (ShapeError, "cu_seqlens must have", {"cu_seqlens": torch.arange(4)}),
        (DtypeError, "positions must be int64", {"positions": torch.ones(3)}),
        (DtypeError, "k must have the dtype", {"k": torch.ones(2, 3, 1, 4).half()}),
        (
            DeviceError,
            "positions must be on the device",
            {"positions": torch.arange(3, device="meta")},
        ),
    ],
    ids=str,
)
def test_rope_refuses_what_does_not_fit(error, message, options):
    x = torch.ones(2, 3, 1, 4)
    with pytest.raises(error, match=f"^rope: .*{message}"):
        rope(**{"q": x, "k": x, **options})


def test_rope_keeps_no_table_of_a_fake_mode():
    q = torch.randn(1, 37, 2, 4)
    with FakeTensorMode():
        fake = torch.randn(1, 37, 2, 4)
        RotaryEmbedding(4)(fake, fake)
        rope(fake, fake)
    assert type(rope(q, q)[0]) is torch.Tensor
    assert type(RotaryEmbedding(4)(q, q)[0]) is torch.Tensor


def test_rotary_embedding_survives_inference_and_casts():
    q = torch.randn(1, 300, 1, 4)
    module = RotaryEmbedding(4)
    with torch.inference_mode():
        module(q, q)
    leaf = q.clone().requires_grad_()
    module(leaf, leaf)[0].sum().backward()
    assert torch.equal(module.to(torch.bfloat16)(q, q)[0], rope(q, q)[0])


@pytest.mark.slow
def test_rotary_embedding_compiles_for_changing_lengths():
    module = RotaryEmbedding(4)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for length in (4, 9, 3):
        q = torch.randn(2, length, 2, 4)
        torch.testing.assert_close(compiled(q, q)[0], rope(q, q)[0])


@pytest.mark.parametrize("last", [-1, 3])
def test_rope_refuses_positions_that_tables_lack(last):
    q, cos = torch.ones(1, 2, 1, 4), torch.ones(3, 2)
    with pytest.raises(IndexRangeError, match="positions must be from 0 to 2"):
        rope(q, q, cos, cos, positions=torch.tensor([0, last]))
