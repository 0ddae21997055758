"""Profiles of models: from sizes, and from modules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drivetrain_core._errors import PlanError
from drivetrain_parallel.cost import profile_module, profile_transformer

GPT = {"vocab": 50368, "seq": 2048, "biases": True, "positions": True, "tied": True}


class Block(nn.Module):
    """A block of a decoder, its feed-forward part gated."""

    def __init__(self, width=32, heads=4, ffn=40):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Decoder(nn.Module):
    """An embedding, blocks, and a head that may be the embedding."""

    def __init__(self, tied=False, blocks=3):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.RMSNorm(32)
        self.head = nn.Linear(32, 64, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(module, ids):
    logits = module(ids)
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def ids(batch=2, seq=16):
    return torch.zeros(batch, seq, dtype=torch.long)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "parameters"),
    [
        (12, 768, 12, 125_311_488),
        (24, 2048, 16, 1_315_950_592),
        (32, 4096, 32, 6_658_859_008),
        (80, 8192, 64, 64_862_437_376),
    ],
)
def test_sizes_give_the_parameters_that_others_count(layers, hidden, heads, parameters):
    profile = profile_transformer(layers=layers, hidden=hidden, heads=heads, **GPT)
    assert profile.num_parameters == parameters


def test_flops_are_six_for_each_weight_and_attention():
    profile = profile_transformer(layers=4, hidden=64, heads=4, vocab=100, seq=32)
    weights = 4 * 12 * 64 * 64 + 100 * 64
    assert profile.flops_per_token == 6 * weights + 3 * 4 * 4 * 64 * 32


@given(
    window=st.integers(1, 64), seq=st.sampled_from([16, 32, 64]), causal=st.booleans()
)
def test_a_window_never_adds_work(window, seq, causal):
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 10, "seq": seq}
    full = profile_transformer(**sizes, causal=causal)
    narrow = profile_transformer(**sizes, causal=causal, window=window)
    assert 0 < narrow.block.attention_work <= full.block.attention_work
    assert narrow.flops_per_token == full.flops_per_token


def test_a_window_visits_as_many_keys_as_counting_gives():
    seq, window = 16, 5
    keys = sum(min(i + 1, window) for i in range(seq)) / seq
    profile = profile_transformer(
        layers=1, hidden=8, heads=1, vocab=4, seq=seq, window=window
    )
    assert profile.block.attention_work == 4 * keys * 8


def test_experts_add_parameters_and_only_the_active_ones_work():
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 10, "seq": 8, "ffn": 128}
    dense = profile_transformer(**sizes)
    sparse = profile_transformer(**sizes, experts=8, active_experts=2)
    extra = sparse.block.parameters - dense.block.parameters
    assert extra == 7 * 2 * 64 * 128 + 64 * 8
    extra_flops = sparse.block.matmul_flops - dense.block.matmul_flops
    assert extra_flops == 2 * 2 * 64 * 128 + 2 * 64 * 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": 0}, "layers must be an integer of at least 1, got 0"),
        ({"hidden": 30}, "hidden 30 is not divisible by 4 heads"),
        ({"kv_heads": 3}, "4 heads are not divisible by 3 kv_heads"),
        ({"seq": "8"}, "seq must be an integer"),
        ({"experts": 2, "active_experts": 3}, "active_experts 3 of only 2 experts"),
    ],
)
def test_sizes_that_make_no_model_are_refused(changes, words):
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 10, "seq": 8, **changes}
    with pytest.raises(PlanError, match=words):
        profile_transformer(**sizes)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("tied", [False, True])
def test_module_is_counted_as_its_sizes_say(device, tied):
    with torch.device(device):
        module = Decoder(tied=tied)
    profile = profile_module(module, ids(), loss_of)
    sizes = profile_transformer(
        layers=3,
        hidden=32,
        heads=4,
        ffn=40,
        vocab=64,
        seq=16,
        gated=True,
        tied=tied,
    )
    assert profile.num_parameters == sizes.num_parameters
    assert profile.num_parameters == sum(p.numel() for p in module.parameters())
    assert profile.flops_per_token == sizes.flops_per_token
    assert (profile.width, profile.sequence) == (32, 16)
    assert profile.vocabulary == 64
    assert profile.block.regions == 2
    assert [m.split for m in profile.block.matmuls] == [
        "outputs",
        "inputs",
        "outputs",
        "inputs",
    ]
    assert profile.block.outer_elements == pytest.approx(sizes.block.outer_elements)
    assert profile.block.inner_elements == pytest.approx(
        sizes.block.inner_elements, rel=0.1
    )


def test_heads_are_those_of_its_attention_where_no_configuration_names_them():
    assert profile_module(Decoder(), ids(), loss_of).heads == (4,)


def test_module_is_not_changed_by_being_counted():
    module = Decoder()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    weight = module.head.weight
    profile_module(module, ids(), loss_of)
    assert module.head.weight is weight
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_profile_is_for_one_token_whatever_the_batch():
    one, four = (profile_module(Decoder(), ids(batch), loss_of) for batch in (1, 4))
    assert one.flops_per_token == four.flops_per_token
    assert one.block.inner_elements == pytest.approx(four.block.inner_elements)
    assert one.block.outer_saved == pytest.approx(four.block.outer_saved, rel=0.01)


def test_written_attention_is_counted_like_the_fused_one():
    class Written(Block):
        def forward(self, x):
            q, k, v = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).chunk(3, -1)
            )
            h = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            x = x + self.out(h.transpose(1, 2).flatten(2))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
            return x + self.down(nn.functional.silu(gate) * up)

    written = Decoder()
    written.blocks = nn.ModuleList(Written() for _ in range(3))
    found = profile_module(written, ids(), loss_of)
    fused = profile_module(Decoder(), ids(), loss_of)
    assert found.flops_per_token == fused.flops_per_token
    moved = found.block.inner_elements + found.block.unfused_inner
    assert moved > fused.block.inner_elements + fused.block.unfused_inner


def test_a_question_for_all_samples_is_answered_as_without_padding():
    class Asks(Decoder):
        def forward(self, ids):
            if not (ids == 0).all() or (ids < 0).any():
                raise AssertionError
            return super().forward(ids)

    assert profile_module(Asks(), ids(), loss_of).num_blocks == 3


def test_module_that_depends_on_values_says_so():
    class Branches(Decoder):
        def forward(self, ids):
            return super().forward(ids) * ids.max().item()

    with pytest.raises(PlanError, match="Branches cannot run on the meta device"):
        profile_module(Branches(), ids(), loss_of)


def test_module_without_blocks_says_so():
    with pytest.raises(PlanError, match="no list of repeated blocks"):
        profile_module(nn.Linear(4, 4), torch.zeros(2, 4), lambda m, x: m(x).sum())


def test_block_that_is_never_called_is_named():
    class Skips(Decoder):
        def forward(self, ids):
            return self.head(self.norm(self.blocks[0](self.embedding(ids))))

    with pytest.raises(PlanError, match="block 1 of Skips was not called"):
        profile_module(Skips(), ids(), loss_of)


@pytest.mark.extra
def test_module_of_transformers_is_counted_exactly():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(config)
    profile = profile_module(
        module,
        ids(1, 512),
        lambda m, ids: m(input_ids=ids, labels=ids).loss,
    )
    sizes = profile_transformer(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn=14336,
        vocab=128256,
        seq=512,
        gated=True,
    )
    assert profile.num_parameters == sizes.num_parameters == 8_030_261_248
    assert profile.flops_per_token == sizes.flops_per_token
    assert profile.heads == (8, 32)
