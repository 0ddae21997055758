"""What `drivetrain fabric topo --measure` carries out, on all ranks of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.services import destroy_process_group, init_process_group
from drivetrain_fabric.topology._cluster import find_flaws, find_hosts
from drivetrain_fabric.topology._command import print_either, print_text
from drivetrain_fabric.topology._draw_links import links_svg
from drivetrain_fabric.topology._draw_text import links_rich, links_text
from drivetrain_fabric.topology._json import to_plain
from drivetrain_fabric.topology._measure import measure_links
from drivetrain_fabric.topology._order import ring_order

if TYPE_CHECKING:
    import argparse

    from drivetrain_fabric.topology._matrix import LinkMatrix


def measure(args: argparse.Namespace) -> int:
    """Measures the links between ranks, and has rank 0 show them."""
    rank = init_process_group().rank()
    try:
        links = measure_links(budget_s=args.budget)
    finally:
        destroy_process_group()
    if rank != 0:
        return 0
    if args.svg is not None:
        Path(args.svg).write_text(links_svg(links), encoding="utf-8")
    if args.json:
        print_text(json.dumps(_as_json(links), indent=2))
    else:
        print_either(links_rich(links), links_text(links))
    return 0


def _as_json(links: LinkMatrix) -> dict[str, object]:
    return {
        "links": to_plain(links),
        "hosts": find_hosts(links),
        "ring": ring_order(links),
        "flaws": to_plain(find_flaws(links)),
    }
