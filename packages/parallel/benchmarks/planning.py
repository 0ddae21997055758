"""Plans the training of a model of eight billion parameters on 64 GPUs.

The model is built on the meta device, profiled, and every mesh is predicted. Nothing is
executed and no weight is allocated.
"""

from __future__ import annotations

import time

import torch
from torch import nn

from drivetrain_parallel.cost import Hardware, profile_module, rank_meshes
from drivetrain_parallel.simulate.clusters import load_cluster
from drivetrain_testing import Row

MOST = 1.0
GPUS, GLOBAL_BATCH, SEQUENCE = 64, 512, 4096
LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 32, 4096, 32, 8, 14336, 128256


class Block(nn.Module):
    """A block of Llama 3, without rotations."""

    def __init__(self):
        super().__init__()
        width = HIDDEN // HEADS
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HEADS * width, bias=False)
        self.key = nn.Linear(HIDDEN, KV_HEADS * width, bias=False)
        self.value = nn.Linear(HIDDEN, KV_HEADS * width, bias=False)
        self.out = nn.Linear(HEADS * width, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, FFN, bias=False)
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        """Attention, then the gated part."""
        batch, seq, _ = x.shape
        h = self.norm1(x)
        q, k, v = (
            part(h).view(batch, seq, -1, HIDDEN // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        h = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(h.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class ByHand(nn.Module):
    """The model where transformers is not installed."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        """The loss."""
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def build():
    """The model on the meta device, and what it is called."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        with torch.device("meta"):
            return ByHand(), "by hand"
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCAB,
        max_position_embeddings=SEQUENCE,
        use_cache=False,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config), "transformers"


def loss_of(module, batch):
    """The loss of either model."""
    out = module(**batch)
    return getattr(out, "loss", out)


def measure(quick):
    """Seconds from an empty process's model to a ranked list of meshes."""
    del quick
    started = time.perf_counter()
    module, origin = build()
    ids = torch.zeros(1, SEQUENCE, dtype=torch.long, device="meta")
    profile = profile_module(module, {"input_ids": ids, "labels": ids}, loss_of)
    profiled = time.perf_counter()
    hardware = Hardware.of(load_cluster("h100").nodes[0])
    ranking = rank_meshes(profile, hardware, GPUS, GLOBAL_BATCH)
    ended = time.perf_counter()
    seconds, ratio = ended - started, (ended - profiled) / (profiled - started)
    best = ranking.best
    return Row(
        figure=f"{ratio:.2f} x, {seconds:.1f} s ({origin}, {profile.num_parameters / 1e9:.2f}B: profile "
        f"{profiled - started:.1f} s, {ranking.num_predictions} predictions): "
        f"{best.shape}, {best.prediction.mfu:.0%} MFU",
        holds=ratio <= MOST,
        proven_on="simulation",
        details={"seconds": seconds, "parameters": profile.num_parameters},
    )


if __name__ == "__main__":
    print(measure(False).figure)
