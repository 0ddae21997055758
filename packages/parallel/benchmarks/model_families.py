"""Fifteen families of models, small and with random weights, and two mixtures of experts.

They are what the mesh is proven on: each with a batch whose tensors have the samples in
their first dimension, and with dropout off. All but the diffusion transformer come from
transformers, which is imported when a family is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

VOCAB, SEQUENCE, HIDDEN, HEADS, FFN, BLOCKS = 128, 16, 64, 4, 128, 4
IMAGE, PATCH, CHANNELS, CLASSES = 16, 4, 3, 8
IMAGE_TOKEN, IMAGE_TOKENS = VOCAB - 1, 4

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model, its data and its loss.

    Args:
        name: What the family is called in tables.
        build: Returns the model in fp32; the caller seeds torch.
        batch: Returns a batch of `size` samples drawn from a seed.
        loss: Returns the scalar loss of (output, batch); None when the model returns
            its own, as those of transformers do for `labels`.
        kind: `decoder`, `encoder`, `encoder-decoder`, `vision`, `vision-language`,
            `diffusion` or `mixture`.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[..., Batch]
    loss: Callable[[Any, Batch], torch.Tensor] | None = None
    kind: str = "decoder"


def loss_of(family, model, batch):
    """Returns the loss of a batch as core computes it."""
    output = model(**batch)
    return output.loss if family.loss is None else family.loss(output, batch)


def words(size=8, seed=0, low=0, high=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (size, SEQUENCE), generator=generator)


def token_batch(size=8, seed=0):
    """Token ids, to be predicted by the model's own shifted cross entropy."""
    ids = words(size, seed)
    return {"input_ids": ids, "labels": ids.clone()}


def masked_batch(size=8, seed=0):
    """Token ids and targets at every fourth place; -100 elsewhere."""
    ids = words(size, seed)
    labels = torch.full_like(ids, -100)
    labels[:, ::4] = ids[:, ::4]
    return {"input_ids": ids, "labels": labels}


def translation_batch(size=8, seed=0):
    """Tokens in one language and another."""
    return {"input_ids": words(size, seed, 2), "labels": words(size, seed + 1, 2)}


def image_batch(size=8, seed=0):
    """Images and their classes."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(size, CHANNELS, IMAGE, IMAGE, generator=generator)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    return {"pixel_values": pixels, "labels": labels}


def image_text_batch(size=8, seed=0):
    """A small image for each text; its patches take places at the text's beginning."""
    ids = words(size, seed, high=IMAGE_TOKEN)
    ids[:, 1 : 1 + IMAGE_TOKENS] = IMAGE_TOKEN
    labels = ids.masked_fill(ids == IMAGE_TOKEN, -100)
    pixels = image_batch(size, seed)["pixel_values"][:, :, ::2, ::2].contiguous()
    return {"input_ids": ids, "pixel_values": pixels, "labels": labels}


def diffusion_batch(size=8, seed=0):
    """Noised latents, their times and classes, and the noise to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(2, size, CHANNELS, IMAGE, IMAGE, generator=generator)
    time = torch.rand(size, generator=generator) * 1000
    classes = torch.randint(0, CLASSES, (size,), generator=generator)
    return {"x": images[0], "t": time, "y": classes, "noise": images[1]}


def diffusion_loss(output, batch):
    return f.mse_loss(output, batch["noise"])


def transformers_model(head, config, **options):
    """Builds a model of transformers from the names of its class and its config."""
    import transformers

    settings = getattr(transformers, config)(**options)
    settings.use_cache = False
    # BLOOM has no other attention than its own.
    settings._attn_implementation = "eager" if head.startswith("Bloom") else "sdpa"
    return getattr(transformers, head)(settings)


LLAMA_LIKE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 64,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    # With the usual 0.02 a width of 64 leaves attention all but uniform, and what is
    # wrong with it would hardly be seen in the loss.
    "initializer_range": 0.1,
}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2}


def decoder(name, head, config, kind="decoder", **options):
    """Returns a decoder whose config has the names that Llama's has."""
    build = partial(transformers_model, head, config, **LLAMA_LIKE | options)
    return Family(name=name, build=build, batch=token_batch, kind=kind)


def vision_language():
    """LLaVA: a ViT of two blocks, a projector, and a Llama of four."""
    import transformers

    vision = transformers.CLIPVisionConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        image_size=IMAGE // 2,
        patch_size=PATCH,
        num_channels=CHANNELS,
        projection_dim=HIDDEN,
        initializer_factor=3.0,
    )
    return transformers_model(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        vision_config=vision,
        text_config=transformers.LlamaConfig(**LLAMA_LIKE, use_cache=False),
        image_token_index=IMAGE_TOKEN,
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
    )


# --------------------------------------------------------------------------------
# A diffusion transformer (Peebles and Xie, "Scalable Diffusion Models with
# Transformers", arXiv:2212.09748). B samples, N patches, D width, H heads.


def modulate(x_BND, shift_BD, scale_BD):
    return x_BND * (1 + scale_BD.unsqueeze(1)) + shift_BD.unsqueeze(1)


class TimeEmbedder(nn.Module):
    """Sines and cosines of the time, through two layers."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.mlp = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
        )

    def forward(self, t_B):
        half = self.width // 2
        frequencies = torch.exp(-9.21 * torch.arange(half, device=t_B.device) / half)
        angles = t_B[:, None].float() * frequencies[None]
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))


class SelfAttention(nn.Module):
    """Attention over the patches, with one matrix for query, key and value."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BND):
        B, N, D = x_BND.shape
        qkv = self.qkv(x_BND).reshape(B, N, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = f.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(B, N, D))


class DiTBlock(nn.Module):
    """Attention and MLP, each shifted, scaled and gated by the condition."""

    def __init__(self, width, num_heads, ffn):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn = SelfAttention(width, num_heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, ffn), nn.GELU("tanh"), nn.Linear(ffn, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x_BND, c_BD):
        parts = self.modulation(c_BD).chunk(6, dim=1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        attended = self.attn(modulate(self.norm1(x_BND), shift_a, scale_a))
        x_BND = x_BND + gate_a.unsqueeze(1) * attended
        mixed = self.mlp(modulate(self.norm2(x_BND), shift_m, scale_m))
        return x_BND + gate_m.unsqueeze(1) * mixed


class FinalLayer(nn.Module):
    """A modulated norm and the way back to pixels."""

    def __init__(self, width, outputs):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, outputs)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x_BND, c_BD):
        shift, scale = self.modulation(c_BD).chunk(2, dim=1)
        return self.linear(modulate(self.norm(x_BND), shift, scale))


class DiT(nn.Module):
    """Predicts the noise of an image from its time and its class."""

    def __init__(self, width=HIDDEN, num_heads=HEADS, ffn=FFN, num_blocks=BLOCKS):
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, PATCH, stride=PATCH)
        num_patches = (IMAGE // PATCH) ** 2
        self.positions = nn.Parameter(torch.randn(1, num_patches, width) * 0.02)
        self.times = TimeEmbedder(width)
        self.classes = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList(
            DiTBlock(width, num_heads, ffn) for _ in range(num_blocks)
        )
        self.final = FinalLayer(width, PATCH * PATCH * CHANNELS)

    def forward(self, x, t, y, noise=None):
        del noise  # the target: of the loss, not of the model
        h = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        c = self.times(t) + self.classes(y)
        for block in self.blocks:
            h = block(h, c)
        out = self.final(h, c)
        grid = IMAGE // PATCH
        out = out.unflatten(1, (grid, grid)).unflatten(3, (PATCH, PATCH, CHANNELS))
        return out.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


MADE = (
    decoder("llama", "LlamaForCausalLM", "LlamaConfig"),
    decoder("qwen3", "Qwen3ForCausalLM", "Qwen3Config", **GROUPED),
    decoder("phi3", "Phi3ForCausalLM", "Phi3Config", resid_pdrop=0.0, embd_pdrop=0.0),
    decoder("mistral", "MistralForCausalLM", "MistralConfig", **GROUPED),
    decoder("gemma", "GemmaForCausalLM", "GemmaConfig", head_dim=16),
    Family(
        name="gpt2",
        build=partial(
            transformers_model,
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=VOCAB,
            n_embd=HIDDEN,
            n_layer=BLOCKS,
            n_head=HEADS,
            n_inner=FFN,
            n_positions=64,
            initializer_range=0.1,
            bos_token_id=0,
            eos_token_id=1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        batch=token_batch,
    ),
    decoder("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", hidden_dropout=0.0),
    Family(
        name="bert",
        build=partial(
            transformers_model,
            "BertForMaskedLM",
            "BertConfig",
            **LLAMA_LIKE
            | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        ),
        batch=masked_batch,
        kind="encoder",
    ),
    decoder(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        ffn_dim=FFN,
        word_embed_proj_dim=HIDDEN,
        init_std=0.1,
        dropout=0.0,
    ),
    Family(
        name="t5",
        build=partial(
            transformers_model,
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=VOCAB,
            d_model=HIDDEN,
            d_kv=HIDDEN // HEADS,
            d_ff=FFN,
            num_layers=BLOCKS,
            num_heads=HEADS,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        ),
        batch=translation_batch,
        kind="encoder-decoder",
    ),
    decoder(
        "bloom", "BloomForCausalLM", "BloomConfig", n_layer=BLOCKS, n_head=HEADS,
        **NO_DROPOUT,
    ),
    decoder(
        "falcon", "FalconForCausalLM", "FalconConfig", ffn_hidden_size=FFN,
        new_decoder_architecture=True, num_kv_heads=HEADS, **NO_DROPOUT,
    ),
    Family(
        name="vit",
        build=partial(
            transformers_model,
            "ViTForImageClassification",
            "ViTConfig",
            hidden_size=HIDDEN,
            intermediate_size=FFN,
            num_hidden_layers=BLOCKS,
            num_attention_heads=HEADS,
            image_size=IMAGE,
            patch_size=PATCH,
            num_channels=CHANNELS,
            num_labels=CLASSES,
            initializer_range=0.1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        batch=image_batch,
        kind="vision",
    ),
    Family(
        name="llava",
        build=vision_language,
        batch=image_text_batch,
        kind="vision-language",
    ),
    Family(
        name="dit", build=DiT, batch=diffusion_batch, loss=diffusion_loss,
        kind="diffusion",
    ),
    decoder(
        "qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", "mixture",
        moe_intermediate_size=FFN, num_experts=4, **GROUPED, **EXPERTS,
    ),
    decoder(
        "mixtral", "MixtralForCausalLM", "MixtralConfig", "mixture",
        num_local_experts=4, **GROUPED, **EXPERTS,
    ),
)  # fmt: skip

FAMILIES: dict[str, Family] = {family.name: family for family in MADE}
