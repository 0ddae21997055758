"""How long a step takes, and what it needs beside its tensors."""

import functools
import statistics
import time
import weakref

import torch
from peers import load_peers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drivetrain_optim import AGD, LAMB
from drivetrain_testing import Row

NUM_TENSORS = 300
SMALL = 10_000_000
NOT_QUICK = Row(figure="left out by --quick", holds=None)


def make_params(numel, num_tensors=NUM_TENSORS, device="cpu"):
    generator = torch.Generator(device).manual_seed(0)
    made = {"generator": generator, "device": device}
    params = []
    for _ in range(num_tensors):
        p = torch.randn(numel // num_tensors, **made)
        params.append(torch.nn.Parameter(p))
        params[-1].grad = torch.randn(p.shape, **made)
    return params


def step_times(makers, num_rounds, numel, num_tensors=NUM_TENSORS):
    """Seconds of each step of each optimizer, in turns."""
    optimizers = {name: make(make_params(numel, num_tensors)) for name, make in makers}
    for optimizer in optimizers.values():
        for _ in range(2):
            optimizer.step()
    times = {name: [] for name in optimizers}
    for _ in range(num_rounds):
        for name, optimizer in optimizers.items():
            start = time.perf_counter()
            optimizer.step()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times, ours, peer):
    """The median of the ratios of neighbouring steps: load of others cancels."""
    pairs = zip(times[ours], times[peer], strict=True)
    return statistics.median(a / b for a, b in pairs)


def adamw(**options):
    return lambda params: torch.optim.AdamW(params, weight_decay=0.01, **options)


@functools.cache
def agd_time(numel, quick):
    """AGD against AdamW, fused and foreach."""
    makers = [
        ("agd", lambda params: AGD(params, weight_decay=0.01)),
        ("fused", adamw(fused=True)),
        ("foreach", adamw(foreach=True)),
    ]
    return step_times(makers, _rounds(numel, quick), numel)


def agd_fused(numel):
    def measure(quick):
        if quick and numel > SMALL:
            return NOT_QUICK
        times = agd_time(numel, quick)
        found = ratio(times, "agd", "fused")
        return Row(figure=_figure(found, times["agd"]), holds=found <= 1.25)

    return measure


def agd_foreach(numel):
    def measure(quick):
        if quick and numel > SMALL:
            return NOT_QUICK
        times = agd_time(numel, quick)
        found = ratio(times, "agd", "foreach")
        return Row(figure=_figure(found, times["agd"]), holds=found <= 1.0)

    return measure


def agd_own_foreach(quick):
    """AGD(foreach=True) against AdamW(foreach=True)."""
    makers = [
        ("agd", lambda params: AGD(params, weight_decay=0.01, foreach=True)),
        ("foreach", adamw(foreach=True)),
    ]
    times = step_times(makers, _rounds(10_000_000, quick), 10_000_000)
    found = ratio(times, "agd", "foreach")
    return Row(figure=_figure(found, times["agd"]), holds=found <= 1.0)


def lamb_fused(numel):
    def measure(quick):
        if quick and numel > SMALL:
            return NOT_QUICK
        makers = [("lamb", LAMB), ("fused", adamw(fused=True))]
        times = step_times(makers, _rounds(numel, quick), numel)
        found = ratio(times, "lamb", "fused")
        return Row(figure=_figure(found, times["lamb"]), holds=found <= 1.6)

    return measure


def lamb_peer(name):
    """LAMB against a peer's at its defaults, with the clipping that timm has."""

    def measure(quick):
        peer = load_peers().get(name)
        if peer is None:
            return Row(figure="-", holds=None, details={"needs": name})
        ours = LAMB.timm if name == "timm" else LAMB
        makers = [("ours", ours), ("peer", lambda p: peer(p, weight_decay=0.01))]
        if name == "timm":
            makers.append(
                ("foreach", lambda p: peer(p, weight_decay=0.01, foreach=True))
            )
        else:
            makers.append(("foreach", lambda p: peer(p, foreach=True)))
        try:
            times = step_times(makers, _rounds(10_000_000, quick), 10_000_000)
        except TypeError:  # this version has no multi-tensor path
            times = step_times(makers[:2], _rounds(10_000_000, quick), 10_000_000)
        ratios = {p: ratio(times, p, "ours") for p in times if p != "ours"}
        best = min(ratios, key=ratios.get)
        return Row(
            figure=f"{ratios[best]:.1f} x faster than its {best} path",
            holds=ratios[best] >= 1.5,
            details=ratios,
        )

    return measure


def host_time(quick):
    """The time of a step over 1,000 tensors of 10 elements, against AdamW(fused)."""
    makers = [("agd", AGD), ("lamb", LAMB), ("fused", adamw(fused=True))]
    times = step_times(makers, 30 if quick else 200, 10_000, 1000)
    medians = {name: statistics.median(t) * 1e6 for name, t in times.items()}
    worst = max(ratio(times, name, "fused") for name in ("agd", "lamb"))
    figure = f"{worst:.2f} ({medians['agd']:.0f} us)"
    return Row(figure=figure, holds=worst <= 1.0, details=medians)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that were made within it and still live."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        }
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if key in given or key in self._known or not storage.nbytes():
                continue
            self._known.add(key)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._freed, key, storage.nbytes())
        return out

    def _freed(self, key, size):
        self._known.discard(key)
        self.live -= size


def temporaries(path, bound):
    def measure(quick):
        worst = 0.0
        for kind in (AGD, LAMB):
            params = make_params(3_000_000)
            optimizer = kind(params, **path)
            optimizer.step()
            with LiveBytes() as counter:
                optimizer.step()
            worst = max(worst, counter.peak / sum(p.nbytes for p in params))
        return Row(figure=f"{worst:.3f} parameter sets", holds=worst <= bound)

    return measure


def _rounds(numel, quick):
    if quick:
        return 7
    return 41 if numel <= SMALL else 15


def _figure(found, times):
    return f"{found:.2f} ({statistics.median(times) * 1e3:.1f} ms)"
