"""Draws what `bars.py --json` printed: `python plot.py FILE IMAGE`."""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator, ScalarFormatter


def draw_selector(axes, models):
    """Each model's step under what was committed, and under plain compilation."""
    models = sorted(models, key=lambda one: one["committed"])
    places = range(len(models))
    plain = [min(one["plain_compile"], 2.0) for one in models]
    axes.plot(plain, places, "x", color="tab:gray", label="torch.compile")
    own = [one["committed"] for one in models]
    axes.plot(own, places, "o", color="tab:blue", label="select")
    axes.axvline(1, color="black", linewidth=0.8)
    labels = [f"{one['model']} ({one['choice']})" for one in models]
    axes.set_yticks(places, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("step, in parts of eager's")
    axes.legend(fontsize=8)


def draw_lines(axes, rows, labels, ylabel):
    """Lines over a size that doubles, on two logarithmic axes."""
    sizes = sorted(map(int, rows))
    for (key, label), color in zip(
        labels.items(), ("tab:blue", "tab:gray"), strict=True
    ):
        values = [rows[str(size)][key] for size in sizes]
        axes.loglog(sizes, values, "o-", color=color, label=label)
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=8)


def draw(details, image):
    """Three panels: compilers, memory of the loss, time under a window."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.5))
    draw_selector(left, details["select-finishes"]["models"])
    memory = {
        size: {key: value / 1e6 for key, value in found.items()}
        for size, found in details["linear-cross-entropy-tokens"].items()
    }
    names = {"fused": "linear_cross_entropy", "unfused": "all logits"}
    draw_lines(middle, memory, names, "MB beside arguments and gradients")
    middle.set_xlabel("tokens, of 131,072 classes")
    names = {"window": "window of 256", "causal": "causal, no window"}
    draw_lines(right, details["window-causal"], names, "s, forward and backward")
    right.set_xlabel("tokens in a sequence")
    figure.tight_layout()
    figure.savefig(image, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    rows = json.loads(arguments.file.read_text())["rows"]
    draw({row["name"]: row["details"] for row in rows}, arguments.image)


if __name__ == "__main__":
    main()
