"""Compares ways to save: the stall, the time to disk, memory, and what a kill loses.

Each way runs in processes of its own; one that fails has a row with its reason. Prints a
table, and writes all figures as JSON and a plot.
"""

import statistics
import subprocess
import sys
from pathlib import Path

from host_memory import extra_bytes
from kills import DELAYS_S, kill_trials
from methods import METHODS, method_of
from programs import ask, node, parser_of, write_report
from workload import MIB, new_place, say

_LONGEST_S = 900
_COLUMNS = (
    "way to save",
    "state",
    "first stall",
    "stall",
    "complete on storage",
    "extra memory",
    "lost after a kill",
)
_FAILURES = (RuntimeError, ImportError, OSError, subprocess.SubprocessError)


def compared(name, sizes_mib, kill_mib, num_saves, delays_s):
    """All figures of one way to save, or as many as there are, and what went wrong."""
    row = {"name": name, "sizes": {}, "reasons": []}
    try:
        row["storage"] = method_of(name).storage
    except ImportError as error:
        return {**row, "reasons": [f"{type(error).__name__}: {error}"]}
    for size_mib in sizes_mib:
        say(f"{name}: {size_mib:,} MiB")
        try:
            figures = _times(name, size_mib, num_saves)
            row["sizes"][size_mib] = figures
            figures["extra_bytes"] = extra_bytes(name, size_mib)
        except _FAILURES as error:
            row["reasons"].append(f"{size_mib:,} MiB: {error}"[:200])
    if row["sizes"]:
        say(f"{name}: kills")
        try:
            row["kills"] = kill_trials(name, kill_mib, delays_s)
        except _FAILURES as error:
            row["reasons"].append(f"kills: {error}"[:200])
    return row


def _times(name, size_mib, num_saves):
    """The first and the later stalls, and the times until complete."""
    with new_place() as place, node(method_of(name), place):
        arguments = ("times", name, place.folder, place.runtime)
        size = ("--mib", size_mib, "--num-saves", num_saves)
        return ask(place, "peer_trial.py", *arguments, *size, timeout_s=_LONGEST_S)


def table(rows):
    """The rows as Markdown."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if not row["sizes"]:
            lines.append(f"| {row['name']} | does not run: {row['reasons'][0]} |||||")
        for size_mib, figures in row["sizes"].items():
            stalls, totals = figures["stalls_s"], figures["totals_s"]
            size = size_mib * MIB
            word = "" if row["storage"] == "synced" else f", {row['storage']}"
            extra = figures.get("extra_bytes")
            cells = [
                row["name"],
                f"{size_mib:,} MiB",
                f"{stalls[0]:.3f} s",
                f"{statistics.median(stalls[1:]):.3f} s",
                f"{statistics.median(totals[1:]):.2f} s{word}",
                "?" if extra is None else f"{extra / size:.1f} x",
                _lost(row.get("kills")),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _lost(trials):
    """How many trials lost the save, and after which delays."""
    if trials is None:
        return "?"
    late = [f"{t['delay_s'] * 1e3:.0f}" for t in trials if not t["whole"]]
    where = (
        f" (killed after {', '.join(late)} ms)" if 0 < len(late) < len(trials) else ""
    )
    return f"{len(late)} of {len(trials)}{where}"


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("--only", action="append", choices=METHODS, metavar="NAME")
    parser.add_argument("--mib", action="append", type=int, help="2048 and 4096")
    parser.add_argument("--kill-mib", type=int, default=512, help="in the kills")
    parser.add_argument("--num-saves", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="64 MiB, two kills")
    parser.add_argument("--json", type=Path, default=Path("checkpoint_peers.json"))
    parser.add_argument("--plot", type=Path, default=Path("checkpoint_peers.png"))
    given = parser.parse_args(argv)
    sizes, kill_mib, delays = given.mib or [2048, 4096], given.kill_mib, DELAYS_S
    if given.quick:
        sizes, kill_mib, delays = [64], 64, (0.0, 0.4)
    rows = [
        compared(name, sizes, kill_mib, given.num_saves, delays)
        for name in given.only or METHODS
    ]
    print(table(rows))
    for row in rows:
        for reason in row["reasons"]:
            print(f"{row['name']}: {reason}")
    write_report(given.json, {"rows": rows, "kill_mib": kill_mib})
    from plot import plot

    plot(rows, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
