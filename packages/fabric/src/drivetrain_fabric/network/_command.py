"""The command `drivetrain fabric simulate`: compares settings, or shows an incast."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_core.commands import UsageError, as_wrong_use
from drivetrain_core.services import ClusterSpec
from drivetrain_core.tables import print_table
from drivetrain_fabric.network import (
    Clos,
    Dcqcn,
    Ecmp,
    FabricError,
    FailedLink,
    Job,
    Marking,
    Pfc,
    Tier,
    advise,
    clos_of,
    collective,
    compare,
    comparison_svg,
    congestion_svg,
    fixed_point,
    incast,
    run_scenario,
)
from drivetrain_fabric.network._job import COLLECTIVES
from drivetrain_fabric.network._populate import OF_FABRIC
from drivetrain_fabric.topology._units import amount

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from drivetrain_fabric.network import CongestionTrace, Measure, Phase

_GBPS = 1e9
_INCAST_S = 0.02
_OF_INCAST = frozenset(
    ("--incast", "--nic-gbps", "--uplink-gbps", "--seed", "--svg", "--json")
)


def run_fabric(args: argparse.Namespace) -> int:
    """Simulates what the options describe, prints it, and returns the exit status.

    Args:
        args: The options of `drivetrain fabric simulate`.

    Raises:
        UsageError: They describe no fabric, or one that does not carry the job.
        ClusterSpecError: The cluster file is not valid.
    """
    _check_given(args)
    spec = None if args.spec is None else ClusterSpec.load(args.spec)
    with as_wrong_use(args, placement="--placements"):
        return _run_incast(args) if args.incast is not None else _compare(args, spec)


def _compare(args: argparse.Namespace, spec: ClusterSpec | None) -> int:
    """Compares placements and queue pairs."""
    clos = _clos(args) if spec is None else clos_of(spec)
    num_gpus = args.gpus if spec is None else spec.num_devices
    clos = _with_failed(clos, args.failed, args.seed)
    phases = _phases(args, clos, num_gpus)
    measures = compare(
        clos,
        phases,
        nodes=range(clos.num_nodes),
        placements=args.placements.split(","),
        queue_pairs=args.queue_pairs,
        ecmp=Ecmp(kind=args.hash, seed=args.seed),
        num_seeds=args.seeds,
    )
    title = f"{args.traffic} of {num_gpus} GPUs on {clos.num_leaves} leaves"
    if args.svg is not None:
        Path(args.svg).write_text(comparison_svg(measures, title), encoding="utf-8")
    if args.advice is not None:
        order = advise(clos, phases, nodes=range(clos.num_nodes)).order
        Path(args.advice).write_text("".join(f"{n}\n" for n in order))
    if args.json:
        report = {"gpus": num_gpus, "fabric": asdict(clos), "traffic": args.traffic}
        report["measures"] = [asdict(m) | {"slowdown": m.slowdown} for m in measures]
        sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
        return 0
    print_table(title, _table(measures))
    return 0


def _check_given(args: argparse.Namespace) -> None:
    """Refuses options that would not count, given what else is."""
    if args.incast is not None:
        unused = args.given - _OF_INCAST
        why = "--incast has a fabric and traffic of its own"
    elif args.spec is not None:
        unused = args.given & OF_FABRIC.keys()
        why = "--spec describes the fabric"
    else:
        return
    if unused:
        message = f"{why}: leave {', '.join(sorted(unused))} out"
        raise UsageError(message)


def _clos(args: argparse.Namespace) -> Clos:
    if args.gpus % args.gpus_per_node:
        message = (
            "--gpus must be a multiple of --gpus-per-node, which is "
            f"{args.gpus_per_node}, got {args.gpus}"
        )
        raise FabricError(message)
    up = args.uplink_gbps * _GBPS
    below = args.spine_downlinks
    if below is None:
        below = 32 if args.tiers == 3 else 64
    leaf = Tier(
        downlinks=args.leaf_downlinks, uplinks=args.leaf_uplinks, uplink_bits_per_s=up
    )
    above: tuple[Tier, ...] = (Tier(downlinks=below),)
    if args.tiers == 3:
        spine = Tier(downlinks=below, uplinks=args.spine_uplinks, uplink_bits_per_s=up)
        above = (spine, Tier(downlinks=args.core_downlinks))
    return Clos(
        num_nodes=args.gpus // args.gpus_per_node,
        nics_per_node=args.nics,
        nic_bits_per_s=args.nic_gbps * _GBPS,
        rails=not args.no_rails,
        tiers=(leaf, *above),
        latency_s=args.latency_us * 1e-6,
    )


def _with_failed(clos: Clos, num: int, seed: int) -> Clos:
    if not num:
        return clos
    ports = clos.tiers[0].uplinks
    most = clos.num_leaves * ports
    if not 0 < num <= most:
        message = f"--failed must be 0 to {most}, got {num}"
        raise FabricError(message)
    chosen = np.random.default_rng(seed).choice(most, size=num, replace=False)
    places = (divmod(int(at), ports) for at in chosen)
    failed = tuple(FailedLink(tier=0, switch=s, port=port) for s, port in places)
    return replace(clos, failed=failed)


def _phases(args: argparse.Namespace, clos: Clos, num_gpus: int) -> tuple[Phase, ...]:
    if args.traffic not in (*COLLECTIVES, "job"):
        known = ", ".join(COLLECTIVES)
        message = f"--traffic must be one of {known}, job, got {args.traffic!r}"
        raise FabricError(message)
    if args.traffic != "job":
        phase = collective(
            args.traffic,
            num_nodes=clos.num_nodes,
            nics_per_node=clos.nics_per_node,
            size_bytes=args.size,
            num_ranks=num_gpus,
        )
        return (phase,)
    job = Job(
        num_gpus=num_gpus,
        gpus_per_node=num_gpus // clos.num_nodes,
        nics_per_node=clos.nics_per_node,
        tensor=args.tensor,
        pipeline=args.pipeline,
        gradient_bytes=args.size,
        activation_bytes=args.activations,
    )
    return job.phases()


def _run_incast(args: argparse.Namespace) -> int:
    """Shows what the victim of an incast gets, by what controls the senders."""
    speed = args.nic_gbps * _GBPS
    # Thresholds are the paper's, for 40 Gb/s, in time: a faster link has longer queues.
    scale = speed / 40e9
    marking = Marking(min_bytes=5e3 * scale, max_bytes=200e3 * scale)
    pfc = Pfc(xoff_bytes=500e3 * scale, xon_bytes=480e3 * scale)
    ratio = args.uplink_gbps / args.nic_gbps
    scenario = incast(
        args.incast, bits_per_s=speed, uplink_ratio=ratio, buffer_bytes=1e6 * scale
    )
    dcqcn = Dcqcn(additive_bits_per_s=40e6 * scale)
    run = partial(
        run_scenario, scenario, seconds=_INCAST_S, step_s=2e-6, seed=args.seed
    )
    found = {
        "nothing": run(marking=marking),
        "PFC": run(marking=marking, pfc=pfc),
        "DCQCN and PFC": run(marking=marking, pfc=pfc, dcqcn=dcqcn),
    }
    title = f"{args.incast} senders to one, and a victim"
    if args.svg is not None:
        Path(args.svg).write_text(congestion_svg(found, title), encoding="utf-8")
    if args.json:
        report = {
            "links": scenario.names,
            "runs": {name: _plain_trace(trace) for name, trace in found.items()},
        }
        sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
        return 0
    rows = [["control", "senders", "victim", "queue", "paused", "lost"]]
    rows += [[name, *_incast_cells(trace)] for name, trace in found.items()]
    print_table(f"{title}, after 10 ms", rows)
    rest = fixed_point(args.incast, speed, dcqcn=dcqcn, marking=marking)
    sys.stdout.write(
        f"DCQCN comes to rest at {amount(rest.rate_bits_per_s, 'b/s')} a sender and a "
        f"queue of {amount(rest.queue_bytes, 'B')}\n"
    )
    return 0


def _incast_cells(trace: CongestionTrace) -> list[str]:
    late = trace.time_s > trace.time_s[-1] / 2
    rates = trace.goodput_bits_per_s[late].mean(axis=0)
    return [
        amount(float(rates[:-1].mean()), "b/s"),
        amount(float(rates[-1]), "b/s"),
        amount(float(trace.queue_bytes[late].mean(axis=0).max()), "B"),
        f"{100 * trace.paused[late].mean(axis=0).max():.0f}%",
        amount(trace.lost_bytes, "B") if trace.lost_bytes else "none",
    ]


def _plain_trace(trace: CongestionTrace) -> dict[str, object]:
    plain = asdict(trace)
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in plain.items()}


def _table(measures: Sequence[Measure]) -> list[list[str]]:
    head = ["placed", "port up", "QPs", "leaves rack", "port over", "flow hit"]
    return [[*head, "time", "x ideal"], *map(_cells, measures)]


def _cells(measure: Measure) -> list[str]:
    return [
        measure.placement,
        f"{measure.uplink_ratio:g} NIC{'s' if measure.uplink_ratio != 1 else ''}",
        str(measure.num_queue_pairs),
        f"{100 * measure.crossing.share_between_racks:.1f}%",
        f"{100 * measure.some_port_overloaded:.1f}%",
        f"{100 * measure.flow_overloaded:.1f}%",
        amount(measure.seconds, "s"),
        f"{measure.slowdown:.2f}",
    ]
