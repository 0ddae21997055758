"""How much memory calls take beside their arguments, counted where it is allocated.

The unfused head is counted on tensors without data: with its logits of T x V it would take
more than ten gigabytes. The fused one runs indeed. A call that can be counted both ways shows
that the two counts agree.
"""

import weakref

import torch
from losses import CLASSES, HIDDEN, head, plain, step
from timing import NOT_QUICK
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drivetrain_kernels import attention, linear_cross_entropy
from drivetrain_testing import Row

TOKENS = 8192
MEGABYTE = 1e6


class LiveStorages(TorchDispatchMode):
    """The most bytes that lived at one time, of storages that operators made."""

    def __init__(self, ignored):
        super().__init__()
        self.peak = self.live = 0
        self.seen = {id(t.untyped_storage()): t.untyped_storage() for t in ignored}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(result)):
            self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        key, size = id(storage), storage.nbytes()
        if key in self.seen:
            return
        self.seen[key] = None
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key, size):
        del self.seen[key]
        self.live -= size


def counted_without_data(make, call):
    """Peak bytes of a call beside its arguments, which never exist."""
    with FakeTensorMode():
        tensors = make()
        with LiveStorages(tensors) as storages:
            call(*tensors)
    return storages.peak


def counted(make, call):
    """Peak bytes of a call beside its arguments, as the allocator saw it."""
    tensors = make()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call(*tensors)
    events = found.profiler.kineto_results.events()
    moves = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    live = peak = 0
    for _, size in sorted(moves):
        live += size
        peak = max(peak, live)
    return peak


def fake_head(num_tokens, dtype):
    x = torch.empty(num_tokens, HIDDEN, dtype=dtype, requires_grad=True)
    w = torch.empty(CLASSES, HIDDEN, dtype=dtype, requires_grad=True)
    return x, w, torch.empty(num_tokens, dtype=torch.int64)


def gradient_bytes(num_tokens, dtype):
    return (num_tokens + CLASSES) * HIDDEN * dtype.itemsize


def fused_bytes(num_tokens, dtype):
    """Of a fused step, its gradients not counted."""
    peak = counted(
        lambda: head(num_tokens, dtype), lambda *t: step(linear_cross_entropy, *t)
    )
    return peak - gradient_bytes(num_tokens, dtype)


def unfused_bytes(num_tokens, dtype):
    """Of an unfused step; at its peak there are no gradients of weights yet."""
    return counted_without_data(
        lambda: fake_head(num_tokens, dtype), lambda *t: step(plain, *t)
    )


def head_memory(dtype):
    """The fused head's extra memory against the unfused one's."""

    def measure(quick):
        if quick and dtype != torch.float32:
            return NOT_QUICK
        num_tokens = 1024 if quick else TOKENS
        ours = fused_bytes(num_tokens, dtype)
        theirs = unfused_bytes(TOKENS, dtype)
        return Row(
            figure=f"{ours / theirs:.1%} ({ours / MEGABYTE:.0f} MB, unfused "
            f"{theirs / MEGABYTE:.0f} MB)",
            holds=ours <= 0.1 * theirs,
            details={"tokens": num_tokens, "unfused_tokens": TOKENS},
        )

    return measure


def head_tokens(quick):
    """The fused head's extra memory at eight times the tokens."""
    if quick:
        return NOT_QUICK
    counts = (512, 1024, 2048, 4096)
    extra = {
        str(count): {
            "fused": fused_bytes(count, torch.float32),
            "unfused": unfused_bytes(count, torch.float32),
        }
        for count in counts
    }
    few, many = (extra[str(count)]["fused"] for count in (counts[0], counts[-1]))
    found = many / few
    return Row(
        figure=f"{found:.2f} x ({few / MEGABYTE:.0f} MB and {many / MEGABYTE:.0f} MB)",
        holds=found <= 1.1,
        details=extra,
    )


def agreement(quick):
    """Both ways to count, on a head that is small enough for both."""
    del quick
    with_data = counted(lambda: head(256, classes=4096), lambda *t: step(plain, *t))
    without = counted_without_data(
        lambda: head(256, classes=4096), lambda *t: step(plain, *t)
    )
    found = with_data / without
    return Row(figure=f"{found:.2f} x", holds=0.9 <= found <= 1.1)


def window(quick):
    """Windowed attention's extra memory at twice the sequence."""

    def make(length):
        return [torch.randn(1, length, 4, 64, requires_grad=True) for _ in range(3)]

    def call(q, k, v):
        attention(q, k, v, window=256, impl="blocked").sum().backward()

    lengths = (2048, 4096) if quick else (4096, 8192)
    short, long = (counted(lambda n=n: make(n), call) for n in lengths)
    found = long / short
    return Row(
        figure=f"{found:.2f} x ({short / MEGABYTE:.0f} MB and {long / MEGABYTE:.0f} MB)",
        holds=found <= 2.1,
    )


TABLE = [
    ("linear-cross-entropy-memory", "<= 10% of unfused", head_memory(torch.float32)),
    (
        "linear-cross-entropy-memory-bf16",
        "<= 10% of unfused",
        head_memory(torch.bfloat16),
    ),
    ("linear-cross-entropy-tokens", "<= 1.1 x for 8 x the tokens", head_tokens),
    ("allocations-agree", "0.9 to 1.1", agreement),
    ("window-memory", "<= 2.1 x for 2 x the sequence", window),
]
