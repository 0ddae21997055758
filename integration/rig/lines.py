"""Measurements in words, for people."""

from __future__ import annotations


def topology_lines(topology):
    """What a network is."""
    rates = topology["goodput_mbit_per_s"].items()
    flows = ", ".join(f"{rate:.0f} with {count} flow(s)" for count, rate in rates)
    cap = topology["flow_cap_mbit_per_s"]
    capped = f", flows of {cap:g}" if cap else ""
    first = (
        f"{topology['scenario']}: ranks on hosts {topology['hosts_of_ranks']}, "
        f"{topology['model_mb']:.1f} MB, computes {topology['compute_s']:.2f} s"
    )
    trip = (
        f"round trip {topology['measured_rtt_ms']:.2f} ms "
        f"(nominally {topology['rtt_ms']:g} ms)"
    )
    return [
        first,
        f"ports of {topology['rate_mbit_per_s']:g} Mbit/s{capped}",
        f"goodput in Mbit/s: {flows}",
        trip,
        f"no step is faster than {topology['step_bound_s']:.3f} s",
    ]


def training_line(figures):
    """What a training took."""
    size = figures["bucket_cap_mb"]
    bucket = "" if size is None else f", buckets of {size:g} MB"
    agree = "" if figures["ranks_agree"] else "; RANKS DISAGREE"
    return (
        f"{figures['launcher'] or 'stock'}{bucket}: step {figures['median_s']:.3f} s "
        f"({figures['least_s']:.3f} to {figures['most_s']:.3f}), "
        f"efficiency {figures['efficiency']:.2f}{agree}"
    )


def comparison_lines(compared):
    """What trainings in turns took."""
    turns = zip(compared["stock"], compared["launched"], strict=True)
    last = (
        f"stock / launched: {compared['ratio']:.3f}; "
        f"losses differ by {compared['loss_difference']:.1e} at most"
    )
    return [*(training_line(figures) for pair in turns for figures in pair), last]
