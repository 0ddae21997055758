"""Draws what `ddp.py --json FILE` kept: `python plot.py FILE IMAGE`; prints the table."""

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def rows(scenarios):
    """Returns for each scenario what the table says of it."""
    for name, found in scenarios.items():
        compute_s = found["topology"]["compute_s"]
        yield {
            "name": name,
            "stock_s": found["stock_s"],
            "tuned_s": found["tuned_s"],
            "bound_s": found["topology"]["step_bound_s"],
            "gain": found["gain"],
            "gain_swept": found["gain_swept"],
            "efficiency": found["efficiency"],
            # What perfect scaling would come to: a step that only computes.
            "stock_scaling": compute_s / found["stock_s"],
            "tuned_scaling": compute_s / found["tuned_s"],
        }


def print_table(table):
    print(
        "| Scenario | stock, s a step | tuned, s | bound, s | gain | by hand | of bound |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in table:
        swept = f"{row['gain_swept']:.2f} x" if row["gain_swept"] else ""
        print(
            f"| {row['name']} | {row['stock_s']:.3f} | {row['tuned_s']:.3f} | "
            f"{row['bound_s']:.3f} | {row['gain']:.2f} x | {swept} | "
            f"{row['efficiency']:.2f} |"
        )


def draw(table, image):
    """Two panels: how much faster a step is, and how near to linear it scales."""
    names = [row["name"] for row in table]
    places = range(len(names))
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), sharey=True)
    left.barh(places, [row["gain"] for row in table], color="tab:blue")
    left.axvline(1, color="black", linewidth=0.8)
    left.set_xlabel("times as fast as stock DDP")
    left.set_yticks(places, names, fontsize=8)
    left.invert_yaxis()
    for key, color, label in (
        ("stock_scaling", "tab:gray", "stock DDP"),
        ("tuned_scaling", "tab:blue", "drivetrain-comm"),
    ):
        right.plot([row[key] for row in table], places, "o", color=color, label=label)
    bounds = [row["tuned_scaling"] * row["tuned_s"] / row["bound_s"] for row in table]
    right.plot(
        bounds, places, "|", color="black", markersize=12, label="network's bound"
    )
    right.set_xlim(0, 1.02)
    right.set_xlabel("share of linear scaling (computing / step)")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(image, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    table = list(rows(json.loads(arguments.file.read_text())["scenarios"]))
    print_table(table)
    draw(table, arguments.image)


if __name__ == "__main__":
    main()
