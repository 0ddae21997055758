"""The examples that readers copy first run as they stand, but for the search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/tutorials/quickstart.md"]
PAGES += ["docs/how-to/run-a-horovod-script.md"]
PAGES += [str(p.relative_to(ROOT)) for p in ROOT.glob("packages/*/README.md")]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert examples
    names: dict[str, object] = {"__name__": "example"}
    for example in examples:
        # A search would take its whole budget: its place is taken by an empty strategy.
        exec(re.sub(r'budget="\w+"', "strategy=[]", example), names)  # noqa: S102
