"""A training run under one allocator."""

import argparse
import json
import os
import random
import statistics
import time

import torch
from torch import nn

import drivetrain_memory


class Block(nn.Module):
    def __init__(self, dim, heads, rank):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.into, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.adapters = None
        if rank:
            self.requires_grad_(False)
            self.adapters = nn.ModuleList(
                [nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)]
            )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.into(self.norms[0](x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = mixed.transpose(1, 2).flatten(-2)
        if self.adapters is not None:
            y = y + self.adapters[1](self.adapters[0](y))
        x = x + self.out(y)
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, rank=0, dim=2048, depth=12, vocab=32_000):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*(Block(dim, 16, rank) for _ in range(depth)))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        logits = self.head(self.blocks(self.table(ids)))
        return nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configuration")
    parser.add_argument("allocator")
    parser.add_argument("steps", type=int)
    parser.add_argument("--limit", type=int, help="bytes of the device")
    parser.add_argument("--snapshot", help="where the history goes")
    args = parser.parse_args()
    configuration, allocator, steps = args.configuration, args.allocator, args.steps
    limit = args.limit
    # Where it only warns, attention keeps a backward whose sums differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    if allocator == "ours":
        drivetrain_memory.enable(capacity_bytes=limit)
    elif limit is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
    if args.snapshot:
        torch.cuda.memory._record_memory_history(stacks="python", context=None)
    torch.manual_seed(0)
    draw = random.Random(3)
    with torch.device("cuda"):
        model = Model(rank=16 if configuration == "lora" else 0).bfloat16()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)
    side = torch.cuda.Stream()
    losses, times, finished = [], [], True
    try:
        for _ in range(steps):
            length = 2048
            if configuration == "varlen":
                length = draw.randrange(256, 2049, 64)
            ids = torch.randint(0, 32_000, (8, length), device="cuda")
            torch.cuda.synchronize()
            begin = time.perf_counter()
            loss = model(ids)
            loss.backward()
            if configuration == "side-streams":
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    copies = [p.detach().clone() for p in trained]
                    for p in trained:
                        p.record_stream(side)
                del copies
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
            losses.append(float(loss))
    except torch.cuda.OutOfMemoryError:
        finished = False
    if args.snapshot:
        torch.cuda.memory._dump_snapshot(args.snapshot)
    print(
        json.dumps(
            {
                "finished": finished,
                "losses": losses,
                "step_ms": statistics.median(times[2:]) if len(times) > 2 else 0.0,
                "slowest_ms": max(times[2:], default=0.0),
                "live_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
            }
        )
    )


if __name__ == "__main__":
    main()
