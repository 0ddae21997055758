"""Draws what `bars.py --only schedules --json` printed: compiled beside the library."""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

_COLLECTIVE = "all_reduce"


def main():
    report = json.loads(Path(sys.argv[1]).read_text())
    row = next(one for one in report["rows"] if one["name"] == "schedules")
    start = f"{_COLLECTIVE} on "
    compiled = {
        name.removeprefix(start): ratio
        for name, ratio in row["details"]["compiled"].items()
        if name.startswith(start)
    }
    library = row["details"]["library"]
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for at, (name, ratio) in enumerate(compiled.items()):
        usual = library.get(start + name)
        if usual is not None:
            axes.barh(at - 0.2, usual, 0.38, color="#b0b7c3")
            axes.text(usual + 0.02, at - 0.2, f"{usual:.2f}", va="center", fontsize=8)
        axes.barh(at + 0.2, ratio, 0.38, color="#2a6fdb")
        axes.text(ratio + 0.02, at + 0.2, f"{ratio:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(compiled)), list(compiled))
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("time over the lower bound (simulation, 256 MB all-reduce)")
    axes.barh([0], [0], color="#b0b7c3", label="best of the library")
    axes.barh([0], [0], color="#2a6fdb", label="compiled")
    axes.legend(loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
