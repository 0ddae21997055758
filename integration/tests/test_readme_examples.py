"""The examples that readers copy first run as they stand, but for the search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/tutorials/quickstart.md"]
PAGES += ["docs/how-to/run-a-horovod-script.md"]
PACKAGES = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("packages/*/README.md"))


# Those of the packages run in the environment of each package as well.
@pytest.mark.parametrize(
    "page", [*PAGES, *(pytest.param(p, marks=pytest.mark.slow) for p in PACKAGES)]
)
def test_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert examples
    for example in examples:
        # Whoever pastes one has none of the others. A search would take its whole budget:
        # its place is taken by an empty strategy.
        code = re.sub(r'budget="\w+"', "strategy=[]", example)
        exec(code, {"__name__": "example"})  # noqa: S102
