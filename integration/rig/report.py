"""Measurements of scenarios: one form of training, two in turns, buckets by hand."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
from importlib import metadata

from rig.goodput import flows_that_fill, measure_goodput
from rig.network import Network
from rig.trainers import loss_difference, train

SWEPT_MB = (1, 2, 4, 8, 12, 25, 50, 100)


class Bench:
    """A network of a scenario, measured once, on which trainings run; a context manager.

    Args:
        scenario: The scenario.
        num_steps: The steps of each training.
        num_warmup: How many of them do not count, at the start.
        options: Further arguments of the training script.
    """

    def __init__(self, scenario, *, num_steps=30, num_warmup=5, options=()):
        if not 0 <= num_warmup < num_steps:
            raise ValueError(
                f"steps that do not count must be fewer than all {num_steps}, "
                f"not {num_warmup}"
            )
        self._scenario = scenario
        self._num_warmup = num_warmup
        self._num_steps = num_steps
        self._options = options

    def __enter__(self):
        link = self._scenario.link
        with contextlib.ExitStack() as stack:
            network = Network(self._scenario.num_hosts, link)
            self._network = stack.enter_context(network)
            counts = sorted({1, flows_that_fill(link)})
            self._goodputs = [measure_goodput(network, num_flows=n) for n in counts]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def topology(self):
        """What the network is, nominally and as measured, and what bounds a step."""
        scenario, best = self._scenario, self._goodputs[-1]
        link = scenario.link
        return {
            "scenario": scenario.name,
            "hosts_of_ranks": scenario.hosts,
            "model_mb": scenario.shape.size_bytes / 1e6,
            "compute_s": scenario.compute_s,
            "rate_mbit_per_s": link.rate_mbit_per_s,
            "flow_cap_mbit_per_s": link.flow_cap_mbit_per_s,
            "rtt_ms": link.rtt_ms,
            "goodput_mbit_per_s": {g.num_flows: g.mbit_per_s for g in self._goodputs},
            "measured_rtt_ms": 1e3 * self._rtt_s(),
            "step_bound_s": scenario.step_bound_s(best.bytes_per_s, self._rtt_s()),
        }

    def train(self, launcher=None, bucket_cap_mb=None, *, num_steps=None):
        """Trains once, as long as always or as is said; returns it and its figures."""
        cap = [] if bucket_cap_mb is None else ["--bucket-cap-mb", bucket_cap_mb]
        options = ["--steps", num_steps or self._num_steps, *self._options, *cap]
        before = self._network.stats()
        done = train(self._network, self._scenario, *options, launcher=launcher)
        after = self._network.stats()
        counted = done.steps_s[self._num_warmup :]
        median = statistics.median(counted)
        figures = {
            "launcher": launcher,
            "bucket_cap_mb": bucket_cap_mb,
            "median_s": median,
            "least_s": min(counted),
            "most_s": max(counted),
            "efficiency": self.topology()["step_bound_s"] / median,
            "ranks_agree": done.ranks_agree,
            "steps_s": done.steps_s,
            "switch": {key: after[key] - before[key] for key in after},
        }
        return done, figures

    def compare(self, launcher, num_pairs, bucket_cap_mb=None):
        """Stock and launched trainings in turns."""
        stock, launched, differences = [], [], []
        for _ in range(num_pairs):
            first, figures = self.train(None, bucket_cap_mb)
            stock.append(figures)
            second, figures = self.train(launcher, bucket_cap_mb)
            launched.append(figures)
            differences.append(loss_difference(first, second))
        return {
            "stock": stock,
            "launched": launched,
            "stock_s": _median(stock),
            "launched_s": _median(launched),
            "ratio": _median(stock) / _median(launched),
            "loss_difference": max(differences),
        }

    def sweep(self):
        """Stock with each size of buckets; the best one comes first."""
        found = [self.train(None, size)[1] for size in SWEPT_MB]
        return sorted(found, key=lambda figures: figures["median_s"])

    def conditions(self):
        """What figures depend on beside the scenario."""
        return {
            "tcp": self._network.settings(0),
            "num_cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
            "kernel": platform.release(),
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
        }

    def _rtt_s(self):
        return min(goodput.rtt_s for goodput in self._goodputs)


def _median(runs):
    return statistics.median(figures["median_s"] for figures in runs)
