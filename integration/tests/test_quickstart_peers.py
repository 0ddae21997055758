"""The figures of others that the main job shows are those of the page that it names."""

from __future__ import annotations

from pathlib import Path

from drivetrain.quickstart._peers import read_peers

ROOT = Path(__file__).parents[2]


def test_pauses_of_others_stand_on_their_page():
    peers = read_peers()
    page = (ROOT / peers.source).read_text()
    assert peers.date in page
    for pause in peers.pauses:
        name, version = pause.name.rsplit(" ", 1)
        (row,) = [line for line in page.splitlines() if f"`kill -9`, {name} |" in line]
        _, _, _, tuned, documented, more, _ = row.split("|")
        assert tuned.strip().startswith(f"{pause.tuned_s:.2f} s ")
        if pause.documented_s is None:
            assert documented.strip() == "never"
        else:
            assert documented.strip().startswith(f"{pause.documented_s:.2f} s ")
        assert pause.besides in more
        assert version in page
