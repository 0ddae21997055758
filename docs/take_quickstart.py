"""Puts the outputs of a run of the main job where the README and the tutorial show them.

nox -s quickstart && python docs/take_quickstart.py quickstart

The README has a place for each capability of a CPU; the tutorial shows one of them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
SHOWN = DOCS / "tutorials" / "quickstart"
IN_TUTORIAL = "AVX512"
README = DOCS.parent / "README.md"
PLACE = r"(<!-- main job on {0}: begin -->\n).*?(<!-- main job on {0}: end -->)"


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
    """Writes the README's table, and copies table, plan and picture for the tutorial."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    capability = result["machine"]["cpu_capability"]
    if capability == IN_TUTORIAL:
        SHOWN.mkdir(exist_ok=True)
        for name in ("table.md", "plan.yaml", "quickstart.png"):
            shutil.copy(folder / name, SHOWN / name)
    shown = f"{caption(result)}\n\n{(folder / 'table.md').read_text('utf-8')}"
    place = re.compile(PLACE.format(capability), re.DOTALL)
    text, found = place.subn(lambda m: m[1] + shown + m[2], README.read_text("utf-8"))
    if not found:
        sys.exit(f"README.md has no place for a CPU with {capability}")
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
