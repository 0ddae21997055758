"""The table of `peers.py` as a picture."""

import statistics

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

_STALL, _REST = "#0b6e8a", "#b9d9e3"


def plot(rows, file):
    """Draws the stall, and the time until a save is complete, for each size."""
    there = [row for row in rows if row["sizes"]]
    sizes = sorted({size for row in there for size in row["sizes"]})
    if not sizes:
        return
    figure, axes = plt.subplots(
        1,
        len(sizes),
        figsize=(5 + 4 * len(sizes), 1.5 + 0.36 * len(there)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, size in zip(axes[0], sizes, strict=True):
        for place, row in enumerate(there):
            if size in row["sizes"]:
                _draw(axis, place, row, row["sizes"][size])
        axis.set_title(f"{size:,} MiB")
        axis.set_xlabel("seconds (log): stall, then complete on storage")
        axis.set_xscale("log")
        axis.set_yticks(range(len(there)), [row["name"] for row in there])
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _draw(axis, place, row, figures):
    """One way to save: light until complete, dark while the trainer stands still."""
    stall = statistics.median(figures["stalls_s"][1:])
    total = statistics.median(figures["totals_s"][1:])
    is_synced = row["storage"] == "synced"
    axis.barh(place, total, color=_REST, hatch=None if is_synced else "//")
    axis.barh(place, stall, color=_STALL)
    words = f" {stall:.3f}, {total:.2f}" + ("" if is_synced else f" ({row['storage']})")
    axis.annotate(words, (total, place), va="center", fontsize=7)
