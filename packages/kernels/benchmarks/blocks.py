"""RMSNorm, the parallel block and the mixture of experts, each beside the usual."""

import math
import statistics
import time

import torch

from drivetrain_kernels import MoE, ParallelBlock, SerialBlock, rms_norm
from drivetrain_testing import Row

WIDTH, NUM_HEADS, INNER = 256, 4, 1024
MOE_WIDTH, MOE_INNER, TOP_K = 128, 256, 2


def alternate(calls, num_rounds):
    """Seconds of each call, in turns, so that load of others meets all of them."""
    times = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(2):
            call()
    for _ in range(num_rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def speedup(times, ours, peer):
    """The median of the ratios of neighbouring calls."""
    pairs = zip(times[peer], times[ours], strict=True)
    return statistics.median(p / o for p, o in pairs)


def training_step(module, x):
    """Forward and backward, with gradients that do not accumulate."""

    def step():
        for parameter in module.parameters():
            parameter.grad = None
        result = module(x)
        output = result.output if hasattr(result, "output") else result
        output.backward(x.detach())

    return step


def parallel(num_tokens, bound):
    """The parallel block against the serial one, of the same matrices."""

    def measure(quick):
        torch.manual_seed(0)
        sizes = {"num_heads": NUM_HEADS, "inner": INNER}
        serial, block = SerialBlock(WIDTH, **sizes), ParallelBlock(WIDTH, **sizes)
        block.load_parts(serial.parts())
        x = torch.randn(1, num_tokens, WIDTH, requires_grad=True)
        calls = {
            "parallel": training_step(block, x),
            "serial": training_step(serial, x),
        }
        times = alternate(calls, 20 if quick else 100)
        found = speedup(times, "parallel", "serial")
        median = statistics.median(times["parallel"])
        return Row(
            figure=f"{found:.2f} x, {median * 1e3:.1f} ms a step",
            holds=found >= bound,
            details={"speedup": found, "median_s": median, "tokens": num_tokens},
        )

    return measure


def mixture(num_experts, num_tokens):
    """A layer of each implementation, and tokens."""
    torch.manual_seed(0)
    layer = MoE(MOE_WIDTH, MOE_INNER, num_experts=num_experts, top_k=TOP_K)
    x = torch.randn(num_tokens, MOE_WIDTH, requires_grad=True)
    loop = MoE(
        MOE_WIDTH, MOE_INNER, num_experts=num_experts, top_k=TOP_K, impl="reference"
    )
    loop.load_state_dict(layer.state_dict())
    return layer, loop, x


def experts(num_experts, num_tokens, bound):
    """The mixture of experts against a loop over experts."""

    def measure(quick):
        layer, loop, x = mixture(num_experts, num_tokens)
        calls = {"sorted": training_step(layer, x), "loop": training_step(loop, x)}
        times = alternate(calls, 10 if quick else 40)
        found = speedup(times, "sorted", "loop")
        median = statistics.median(times["sorted"])
        return Row(
            figure=f"{found:.2f} x, {median * 1e3:.1f} ms a step",
            holds=found >= bound,
            details={"speedup": found, "median_s": median, "tokens": num_tokens},
        )

    return measure


def growth(quick):
    """How time grows with the number of tokens: the exponent of a power law."""
    sizes = (1024, 4096) if quick else (1024, 2048, 4096, 8192)
    calls = {}
    for num_tokens in sizes:
        layer, _, x = mixture(8, num_tokens)
        calls[num_tokens] = training_step(layer, x)
    times = alternate(calls, 5 if quick else 15)
    # The fastest of each, since what disturbs lasts longer in what takes longer.
    shortest = {n: min(found) for n, found in times.items()}
    first, last = sizes[0], sizes[-1]
    exponent = math.log(shortest[last] / shortest[first]) / math.log(last / first)
    return Row(
        figure=f"tokens^{exponent:.2f}, {shortest[last] * 1e3:.0f} ms at {last}",
        holds=exponent <= 1.15,
        details={"exponent": exponent, "shortest_s": shortest},
    )


def norm(quick):
    """RMSNorm, forward and backward, by "auto" against torch's own."""
    torch.manual_seed(0)
    x = torch.randn(2048, 512, requires_grad=True)
    weight = torch.randn(512, requires_grad=True)
    grad = torch.randn(2048, 512)

    def step(impl):
        return lambda: torch.autograd.grad(
            rms_norm(x, weight, impl=impl), (x, weight), grad
        )

    calls = {"auto": step("auto"), "torch": step("torch")}
    times = alternate(calls, 20 if quick else 100)
    found = speedup(times, "auto", "torch")
    median = statistics.median(times["auto"])
    return Row(
        figure=f"{found:.2f} x, {median * 1e3:.1f} ms a step",
        holds=found >= 1.3,
        details={"speedup": found, "median_s": median},
    )


@torch.no_grad()
def exactness(quick):
    """The layer and the loop in float32, against the loop in float64."""
    layer, loop, x = mixture(8, 256)
    exact = loop.double()(x.detach().double()).output
    plain = loop.float()(x.detach()).output
    ours = layer(x.detach()).output

    def error(found):
        return float((found.double() - exact).norm() / exact.norm())

    ratio = error(ours) / error(plain)
    return Row(figure=f"{ratio:.2f} x the loop's error", holds=ratio <= 1.5)


TABLE = [
    ("rms-norm-2048x512", ">= 1.3 x torch's, forward and backward", norm),
    ("parallel-block-64-tokens", ">= 1.05 x the serial block", parallel(64, 1.05)),
    ("parallel-block-512-tokens", ">= 1 x the serial block", parallel(512, 1.0)),
    ("moe-8-experts-256-tokens", ">= 1.1 x a loop over experts", experts(8, 256, 1.1)),
    # With many tokens for each expert both do the same GEMMs, and nothing else counts.
    ("moe-8-experts-2048-tokens", ">= 0.95 x a loop", experts(8, 2048, 0.95)),
    ("moe-32-experts-1024-tokens", ">= 1.5 x a loop", experts(32, 1024, 1.5)),
    ("moe-growth", "<= tokens^1.15", growth),
    ("moe-exactness", "<= 1.5 x the loop's error", exactness),
]
