"""Puts the outputs of a run of the main job where the tutorial and the README show them.

nox -s quickstart && python docs/take_quickstart.py quickstart
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
SHOWN = DOCS / "tutorials" / "quickstart"
README = DOCS.parent / "README.md"
PLACE = re.compile(
    r"(<!-- main job: begin -->\n).*?(<!-- main job: end -->)", re.DOTALL
)


def caption(result: dict[str, object]) -> str:
    """Returns on what the run was made, in one sentence."""
    machine = result["machine"]
    assert isinstance(machine, dict)
    seconds = result["seconds"]
    assert isinstance(seconds, dict)
    torch = machine["versions"]["torch"]
    return (
        f"The main job on {machine['num_threads']} cores of an {machine['device']} "
        f"({machine['cpu_capability']}, torch {torch}), {machine['date']}, in "
        f"{seconds['all'] / 60:.1f} minutes:"
    )


def main(folder: Path) -> None:
    """Copies table, plan and picture, and writes the README's table."""
    SHOWN.mkdir(exist_ok=True)
    for name in ("table.md", "plan.yaml", "quickstart.png"):
        shutil.copy(folder / name, SHOWN / name)
    result = json.loads((folder / "result.json").read_text("utf-8"))
    table = (folder / "table.md").read_text("utf-8")
    text = README.read_text("utf-8")
    shown = f"{caption(result)}\n\n{table}"
    README.write_text(PLACE.sub(lambda m: m[1] + shown + m[2], text), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
