"""The closing tables and the picture, from what was found."""

import copy
import sys

import pytest

from drivetrain.quickstart._peers import read_peers
from drivetrain.quickstart._picture import draw
from drivetrain.quickstart._table import fast_grid, kill_grid, to_markdown, to_rich
from drivetrain_core import MissingLibraryError


def run(name, step_ms, mfu=0.4):
    return {
        "name": name,
        "step_ms": step_ms,
        "per_s": 1e6 / step_ms,
        "bits_per_byte": 3.5,
        "last_loss": 2.4,
        "peak_mib": 700.0,
        "mfu": mfu,
        "losses": [3.0, 2.8, 2.6, 2.4],
    }


def trial(name, plan, times_s, code=""):
    measured = {"step_times_s": times_s, "samples_per_step": 1}
    measurement = measured if times_s else None
    return {
        "name": name,
        "plan": plan,
        "seconds": 9.0,
        "measurement": measurement,
        "code": code,
    }


RESULT = {
    "search": {
        "is_baseline": False,
        "num_trials": 3,
        "best_tried": 1.25,
        "report": {
            "trials": [
                trial("t01", [], [0.5, 0.6]),
                trial("t02", [{"compile": {"scope": "block"}}], [0.4]),
                trial("t03", [{"precision": {"dtype": "tf32"}}], [], "ERROR"),
            ]
        },
    },
    "pair": {
        "unit": "tokens/s",
        "num_steps": 4,
        "rows": [run("program as written", 500.0), run("plan", 400.0)],
        "speed_up": {"ratio": 1.25, "half_width": 0.03},
    },
    "job": {
        "num_workers": 2,
        "num_standbys": 1,
        "num_steps": 4,
        "kill": {"rank": 1, "pid": 77, "step": 3, "at_s": 5.0},
        "pause_s": 0.21,
        "step_s": 0.11,
        "steps_lost": 0,
        "steps_again": 1,
        "samples_lost": 0,
        "samples_repeated": 0,
        "gap_before": 1e-6,
        "gap_after": 5e-7,
        "gap_most_after": 2e-6,
        "losses": [3.0, 2.8, 2.6, 2.4],
        "reserve_ready_s": 2.0,
        "checkpoint": 4,
        "left_out": [["cpu_threads(num=2)", "2 workers share the cores, 1 for each"]],
    },
}


def cells(grid):
    return {row[0]: row[1:] for row in grid.rows}


def test_first_half_has_both_runs_and_their_ratio():
    grid = fast_grid(RESULT)
    assert grid.columns == ("", "program as written", "plan", "ratio")
    found = cells(grid)
    assert found["tokens/s"] == ("2,000", "2,500", "1.25x")
    assert found["speed-up, 95% interval"] == ("", "", "1.25x +- 0.03")
    assert found["share of the measured peak (MFU)"] == ("40.0%", "40.0%", "1.00x")


def test_program_as_written_is_not_compared_with_itself():
    result = copy.deepcopy(RESULT)
    result["search"] |= {"is_baseline": True, "best_tried": 0.93}
    result["pair"] |= {"rows": RESULT["pair"]["rows"][:1], "speed_up": None}
    grid = fast_grid(result)
    assert grid.columns == ("", "program as written")
    found = cells(grid)
    assert found["tried by the search"] == (
        "3 trials, the fastest other plan 0.93x in its own",
    )
    assert "speed-up, 95% interval" not in found
    assert "no plan was shown to be faster" in grid.title


@pytest.mark.parametrize("missing", ["mfu", "bits_per_byte"])
def test_figure_that_is_not_known_is_left_out(missing):
    result = copy.deepcopy(RESULT)
    before = len(fast_grid(result).rows)
    result["pair"]["rows"][1][missing] = None
    assert len(fast_grid(result).rows) == before - 1


def test_second_half_names_what_died_and_what_was_not_taken():
    found = cells(kill_grid(RESULT))
    assert found["killed"] == ("rank 1 (pid 77), SIGKILL in the middle of step 3",)
    assert found["pause"][0].startswith("0.21 s, the next step within it")
    assert found["samples lost, repeated"] == ("0, 0",)
    assert "1 for each" in found["not taken: cpu_threads(num=2)"][0]


def test_others_figures_say_that_they_were_not_measured_here():
    found, peers = cells(kill_grid(RESULT)), read_peers()
    for pause in peers.pauses:
        assert f"{pause.tuned_s:g} s tuned" in found[f"pause under {pause.name}*"][0]
    assert found["*not measured here"][0].startswith(peers.date)


def test_training_without_a_kill_says_so():
    job = RESULT["job"] | {"kill": None, "pause_s": None, "checkpoint": None}
    job["reserve_ready_s"] = None
    found = cells(kill_grid(RESULT | {"job": job}))
    assert found["killed"] == ("nobody",)
    assert found["pause"] == ("no step was made after the kill",)
    assert found["last checkpoint on disk"] == ("none",)
    assert "the worker in reserve" not in found


def test_tables_hold_the_same_everywhere():
    grid = kill_grid(RESULT)
    assert to_rich(grid).row_count == len(grid.rows)
    lines = to_markdown(grid).splitlines()
    assert len(lines) == 4 + len(grid.rows)
    assert lines[4] == "| killed | rank 1 (pid 77), SIGKILL in the middle of step 3 |"


@pytest.mark.extra
def test_picture_is_drawn(tmp_path):
    path = draw(RESULT, tmp_path / "quickstart.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_picture_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'drivetrain\[plot\]'"):
        draw(RESULT, tmp_path / "quickstart.png")
