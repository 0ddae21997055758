"""The form of `data/public_excerpts.json`: outputs of failed jobs after public sources, written apart from the signatures."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
GROUPS = {
    "crash", "data", "disk", "driver", "hang", "killed", "machine", "memory", "network", "peer-memory", "program",
    "rendezvous", "scheduler", "store", "unknown",
}  # fmt: skip
FIELDS = {
    "id": str, "source": str, "basis": str, "group": (str, list), "action": str, "exit_code": int, "output": str, "kernel": str,
}  # fmt: skip
MIN_ROWS = 220
MIN_ROWS_PER_GROUP = 15


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return json.loads((DATA / "public_excerpts.json").read_text(encoding="utf-8"))[
        "excerpts"
    ]


def groups_of(row: dict[str, Any]) -> list[str]:
    """Returns the groups that are right for a row, the best first."""
    return [row["group"]] if isinstance(row["group"], str) else row["group"]


def test_excerpts_have_all_fields_and_ids_in_order(rows: list[dict[str, Any]]) -> None:
    assert [row["id"] for row in rows] == [f"b{i:03d}" for i in range(len(rows))]
    for row in rows:
        assert row.keys() == FIELDS.keys(), row["id"]
        assert all(isinstance(row[name], kind) for name, kind in FIELDS.items()), row[
            "id"
        ]


def test_excerpts_use_known_words_only(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        groups = groups_of(row)
        assert groups, row["id"]
        assert set(groups) <= GROUPS, row["id"]
        assert len(set(groups)) == len(groups), row["id"]
        assert row["action"] in {"again", "elsewhere", "stop", "any"}, row["id"]
        assert row["basis"] in {"log", "told"}, row["id"]


def test_excerpts_fill_every_group(rows: list[dict[str, Any]]) -> None:
    assert len(rows) >= MIN_ROWS
    counts = Counter(groups_of(row)[0] for row in rows)
    assert counts.keys() == GROUPS
    assert min(counts.values()) >= MIN_ROWS_PER_GROUP, counts


def test_excerpts_name_a_source_of_their_own(rows: list[dict[str, Any]]) -> None:
    kept_apart = set(
        json.loads(
            (DATA / "public_excerpts_kept_apart.json").read_text(encoding="utf-8")
        )["sources"]
    )
    sources = [row["source"] for row in rows]
    assert all(source.strip() for source in sources)
    assert len(set(sources)) == len(sources)
    assert not set(sources) & kept_apart


def test_excerpts_are_of_a_log_length(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert 3 <= row["output"].count("\n") <= 250, row["id"]
        assert row["output"].endswith("\n"), row["id"]
        assert row["exit_code"] != 0, row["id"]
        assert not row["kernel"] or row["kernel"].endswith("\n"), row["id"]
    assert len({row["output"] for row in rows}) == len(rows)
