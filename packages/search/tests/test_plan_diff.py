"""The difference of two plans."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from drivetrain_core import Choice, Plan, Reason
from drivetrain_core.cli import main
from drivetrain_search.plan_diff import diff_plans, show_diff

TWO = (Choice("micro_batch", {"num": 2}),)
FOUR = (Choice("micro_batch", {"num": 4}),)


def found(before, after):
    diff = diff_plans(Plan(choices=tuple(before)), Plan(choices=tuple(after)))
    assert diff.same_strategy == (not diff.choices)
    return [(c.what, c.before, c.after, c.detail) for c in diff.choices]


def test_choices_are_compared_by_slot():
    assert found(TWO, TWO) == []
    assert found(TWO, ()) == [("micro_batch", "micro_batch(num=2)", None, "removed")]
    assert found((), TWO) == [("micro_batch", None, "micro_batch(num=2)", "added")]
    ((slot, before, after, detail),) = found(TWO, FOUR)
    assert (slot, before, after) == (
        "micro_batch",
        "micro_batch(num=2)",
        "micro_batch(num=4)",
    )
    assert detail == "num: 2 -> 4"


def test_another_optimization_of_a_slot_is_one_change():
    ((slot, before, after, detail),) = found([Choice("ddp", {})], [Choice("fsdp", {})])
    assert slot == "data_parallel"
    assert before.startswith("ddp")
    assert after.startswith("fsdp")
    assert detail == ""


def test_defaults_and_order_do_not_count():
    precision, compiled = Choice("precision", {}), Choice("compile", {})
    from drivetrain_core._registry import find

    full = [Choice(c.name, find(c.name).normalize(None)) for c in (compiled, precision)]
    assert found([precision, compiled], full) == []


def test_unknown_optimizations_are_compared_by_name():
    gone = Choice("gone", {"a": 1})
    assert found([gone], [gone]) == []
    assert found([gone], [Choice("gone", {"a": 2, "b": 3})])[0][3] == (
        "a: 1 -> 2, b: None -> 3"
    )


def test_option_that_is_not_allowed_here_is_compared_as_written():
    strange = Choice("micro_batch", {"num": "many"})
    assert found([strange], [strange]) == []
    assert found([strange], TWO)[0][3] == "num: many -> 2"


def test_slot_that_is_answered_twice_loses_nothing():
    both = [Choice("ddp", {}), Choice("fsdp", {})]
    assert found(both, both) == []
    assert len(found(both, both[:1])) == 1


def test_values_stand_side_by_side_with_their_ratio():
    before = Plan(measured={"vs_baseline": 2.0, "ci95": [1, 2], "zero": 0, "on": True})
    after = Plan(
        measured={"vs_baseline": 3.0, "ci95": [1, 2], "zero": 1, "big": 10**400}
    )
    rows = {
        c.what: (c.before, c.after, c.detail)
        for c in diff_plans(before, after).measured
    }
    assert rows["vs_baseline"] == (2.0, 3.0, "1.50x")
    assert rows["ci95"] == ([1, 2], [1, 2], "")
    assert rows["zero"] == (0, 1, "")
    assert rows["on"] == (True, None, "")
    assert rows["big"] == (None, 10**400, "")


def test_only_facts_and_reasons_that_differ_are_told():
    def plan(device, because):
        return Plan(
            made={"torch": "2.13", "device": device},
            fingerprint={"model": device},
            why=(Reason(slot="a", chose="x", because=because),),
        )

    diff = diff_plans(plan("one", "1"), plan("other", "2"))
    assert [c.what for c in diff.made] == ["device"]
    assert [(c.before, c.after) for c in diff.fingerprint] == [("one", "other")]
    assert [(c.what, c.before, c.after) for c in diff.why] == [("a", "1", "2")]


def test_show_prints_foreign_text_as_it_is():
    out = io.StringIO()
    plans = Plan(choices=(Choice("[bold]x[/]", {"[/a]": "[b]"}),)), Plan()
    names = ("[red]a.yaml", "b.yaml")
    show_diff(diff_plans(*plans), names, Console(file=out, width=200))
    assert "[bold]x[/]([/a]=[b])" in out.getvalue()
    assert "[red]a.yaml" in out.getvalue()


# The command


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    plans = [Plan(choices=TWO, measured={"samples_per_s": 4.0}), Plan(choices=FOUR)]
    return [str(p.save(tmp_path / f"{n}.yaml")) for n, p in enumerate(plans)]


def test_diff_command_ends_well_though_plans_differ(files, capsys):
    assert main(["diff", *files]) == 0
    out = capsys.readouterr().out
    assert "num: 2 -> 4" in out
    assert "samples_per_s" in out
    assert main(["diff", files[0], files[0]]) == 0
    assert "the strategies are equal" in capsys.readouterr().out


def test_exit_code_tells_of_a_difference_when_asked(files, capsys):
    assert main(["diff", "--exit-code", *files]) == 1
    assert main(["diff", "--exit-code", files[0], files[0]]) == 0
    assert capsys.readouterr().err == ""


def test_diff_json_is_one_object(files, capsys):
    assert main(["diff", "--json", *files]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["same_strategy"] is False
    assert data["choices"][0]["detail"] == "num: 2 -> 4"
    assert set(data) == {
        "same_strategy",
        "choices",
        "fingerprint",
        "made",
        "measured",
        "why",
    }


def test_diff_json_takes_whatever_yaml_holds(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text("drivetrain_plan: 1\nmade: {on: 2026-01-02}\nstrategy: []\n")
    other = Plan().save(tmp_path / "other.yaml")
    assert main(["diff", "--json", str(path), str(other)]) == 0
    assert "2026-01-02" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("drivetrain_plan: 9\nstrategy: []\n", "must be 1, got 9"),
        ("drivetrain_plan: 1\n", "strategy"),
        ("drivetrain_plan: 1\nstrategy: [", "plan.yaml"),
    ],
    ids=["missing", "version", "no strategy", "no YAML"],
)
@pytest.mark.parametrize("first", [True, False])
def test_diff_of_a_file_that_is_no_plan_is_one_line(
    text, said, first, files, tmp_path, capsys
):
    path = tmp_path / "plan.yaml"
    if text is not None:
        path.write_text(text)
    pair = [str(path), files[0]] if first else [files[0], str(path)]
    assert main(["diff", *pair]) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""


def test_texts_of_plans_command_nothing_to_a_terminal(capsys):
    before = Plan(made={"device": "\x1b[2Jone"})
    show_diff(diff_plans(before, Plan(made={"device": "two"})), ("a", "b"))
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "\\x1b[2Jone" in shown
