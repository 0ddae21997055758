"""The ops on a GPU: against what its memory can carry, its peers, and the host's patience."""

import statistics
import time

import torch
from gpu_llama import mfu, tokens_per_second
from gpu_ops import CASES, DTYPE, HEAD_DIM, HEADS, KEY_HEADS, V, forms_of, normal
from torch.utils._pytree import tree_leaves

from drivetrain_kernels import attention, explain, linear_cross_entropy
from drivetrain_kernels.ops._attention import OP as ATTENTION
from drivetrain_testing import Row, gpu_copy_bandwidth, gpu_seconds

NO_GPU = Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
WINDOW = 1024


def on_gpu(measure):
    """A bar that is skipped where there is no GPU."""

    def guarded(quick):
        if not torch.cuda.is_available():
            return NO_GPU
        torch.cuda.empty_cache()
        return measure(quick)

    return guarded


def row(figure, holds, **details):
    name = torch.cuda.get_device_name()
    return Row(figure=figure, holds=holds, proven_on=name, details=details)


def passes(form, tensors):
    """A forward without gradients, a forward with them, and the backward alone."""
    leaves = [t.detach().requires_grad_() for t in tensors]

    def forward():
        with torch.no_grad():
            return form(*tensors)

    results = tree_leaves(form(*leaves))
    grads = [torch.ones_like(r) for r in results]

    def backward():
        return torch.autograd.grad(results, leaves, grads, retain_graph=True)

    return forward, lambda: form(*leaves), backward


def bandwidth(name):
    """What share of a copy's bandwidth an op reaches, each way."""

    @on_gpu
    def measure(quick):
        del quick
        case = CASES[name]
        tensors = case.make(case.tokens)
        forward, _, backward = passes(case.ours, tensors)
        size = case.weight * DTYPE.itemsize
        limit = gpu_copy_bandwidth(2 << 30)
        seconds = [gpu_seconds(forward), gpu_seconds(backward)]
        there = case.forward * size / seconds[0] / limit
        back = case.backward * size / seconds[1] / limit
        figure = f"{there:.0%} and back {back:.0%}"
        details = {"seconds": seconds, "copy_bytes_per_s": limit}
        return row(figure, min(there, back) >= 0.85, **details)

    return measure


def peers(name):
    """A forward and backward against the best of the other forms."""

    @on_gpu
    def measure(quick):
        del quick
        case = CASES[name]
        tensors = case.make(case.tokens)
        found = {}
        for key, form in forms_of(name).items():
            forward, _, backward = passes(form, tensors)
            found[key] = gpu_seconds(forward) + gpu_seconds(backward)
        ours = found.pop("ours")
        best = min(found, key=found.get)
        ratio = ours / found[best]
        figure = f"{ratio:.2f} x {best} ({ours * 1e3:.3f} ms)"
        return row(figure, ratio <= 1.0, ours=ours, **found)

    return measure


def host_time(way):
    """An op's host time on few tokens, beside that of torch's operators.

    The GPU is not waited for. The op that compares worst counts.
    """

    @on_gpu
    def measure(quick):
        del quick
        found = {}
        for name, case in CASES.items():
            times = {}
            for key, form in (("ours", case.ours), ("eager", case.eager)):
                _, forward, backward = passes(form, case.make(16))
                work = {"forward": forward, "backward": backward}[way]
                times[key] = _host_seconds(work) * 1e6
            found[name] = times
        ratios = {name: t["ours"] / t["eager"] for name, t in found.items()}
        worst = max(ratios, key=ratios.get)
        figure = f"{ratios[worst]:.2f} x ({worst}, {found[worst]['ours']:.0f} us)"
        return row(figure, ratios[worst] <= 2.0, microseconds=found)

    return measure


def _host_seconds(work):
    times = []
    for round_ in range(200):
        start = time.perf_counter()
        work()
        if round_ >= 50:
            times.append(time.perf_counter() - start)
        if round_ % 20 == 0:
            torch.cuda.synchronize()
    return statistics.median(times)


def attention_form(window):
    """Attention by `auto` against the best form that can be named."""

    @on_gpu
    def measure(quick):
        length = 4096 if quick else 8192
        q = normal(2, length, HEADS, HEAD_DIM)
        k, v = (normal(2, length, KEY_HEADS, HEAD_DIM) for _ in range(2))
        options = {"window": window}
        facts = ATTENTION.facts(q, k, v, **options)
        names = [one.name for one in ATTENTION.implementations if not one.refuse(facts)]
        found = {}
        for name in ["auto", *(n for n in names if n != "reference")]:

            def form(*tensors, impl=name):
                return attention(*tensors, impl=impl, **options)

            forward, _, backward = passes(form, (q, k, v))
            found[name] = gpu_seconds(forward) + gpu_seconds(backward)
        ours = found.pop("auto")
        best = min(found, key=found.get)
        chosen = explain("attention", q, k, v, **options).implementation
        ratio = ours / found[best]
        figure = f"{chosen}: {ratio:.2f} x {best} ({ours * 1e3:.2f} ms)"
        return row(figure, ratio <= 1.02, **found)

    return measure


def head_forms(*, compiled):
    """Forms of the linear cross-entropy, each taking hidden states, weight and targets."""
    forms = {"ours": linear_cross_entropy}

    def plain(x, w, target):
        return torch.nn.functional.cross_entropy((x @ w.t()).float(), target)

    forms["eager"] = plain
    if not compiled:
        return forms
    forms["inductor"] = torch.compile(plain, dynamic=False)
    try:
        from liger_kernel.transformers import functional as liger
    except ImportError:
        return forms
    forms["liger"] = liger.liger_fused_linear_cross_entropy
    return forms


def head(*, compiled):
    """The linear cross-entropy's time and memory against the other forms'."""

    @on_gpu
    def measure(quick):
        tokens, hidden = (2048, 2048) if quick else (8192, 4096)
        x, w = (normal(n, hidden).requires_grad_() for n in (tokens, V))
        target = torch.randint(V, (tokens,), device="cuda")
        times, memory = {}, {}
        for name, form in head_forms(compiled=compiled).items():

            def step(form=form):
                x.grad = w.grad = None
                form(x, w, target).backward()

            times[name] = gpu_seconds(step, rounds=5)
            x.grad = w.grad = None
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            made = x.grad.nbytes + w.grad.nbytes
            memory[name] = torch.cuda.max_memory_allocated() - before - made
        share = memory["ours"] / memory["eager"]
        best = min((n for n in times if n != "ours"), key=times.get)
        ratio = times["ours"] / times[best]
        figure = f"{ratio:.2f} x {best}, {share:.0%} of the unfused memory"
        holds = ratio <= 1.0 and share <= 0.1
        return row(figure, holds, seconds=times, bytes=memory)

    return measure


TABLE = [
    *((f"{n}-bandwidth-gpu", ">= 85% of copy", bandwidth(n)) for n in CASES),
    *((f"{n}-peers-gpu", "<= 1 x the best peer", peers(n)) for n in CASES),
    ("host-forward-gpu", "<= 2 x torch's operators", host_time("forward")),
    ("host-backward-gpu", "<= 2 x torch's operators", host_time("backward")),
    ("attention-causal-gpu", "<= 1.02 x the best form", attention_form(None)),
    ("attention-window-gpu", "<= 1.02 x the best form", attention_form(WINDOW)),
    (
        "linear-cross-entropy-gpu",
        "<= 1 x eager, <= 10% of its memory",
        head(compiled=False),
    ),
    (
        "linear-cross-entropy-peers-gpu",
        "<= 1 x the best peer, <= 10% of eager's memory",
        head(compiled=True),
    ),
    ("llama-1b-tokens-gpu", ">= 1 x the best peer", on_gpu(tokens_per_second)),
    ("llama-1b-mfu-gpu", ">= 50%", on_gpu(mfu)),
]
