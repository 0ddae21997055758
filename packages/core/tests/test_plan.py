"""Plans: written, read, checked, and refused with one clear error."""

from __future__ import annotations

import pytest

from drivetrain_core import (
    Choice,
    DrivetrainError,
    Plan,
    PlanFormatError,
    Reason,
    Rejected,
)

FULL = Plan(
    choices=(
        Choice("precision", {"dtype": "bf16_autocast"}),
        Choice("compile", {"scope": "block"}),
        Choice("channels_last", {}),
    ),
    made={"core": "0.1.0", "world": 1, "seconds": 12.5},
    fingerprint={"model": "abc", "batch": "float32[*, 3]"},
    measured={"vs_baseline": 1.5, "ci95": [1.4, 1.6]},
    guard={"loss_rel": 1e-7},
    why=(Reason(slot="compile", chose="compile(scope=block)", because="1.2x: yes"),),
    rejected=(
        Rejected(plan="fsdp", code="NEEDS_WORLD", because="one rank", fix="two"),
    ),
)


def test_plan_survives_its_file(tmp_path):
    path = FULL.save(tmp_path / "deep" / "plan.yaml")
    assert Plan.load(path) == FULL
    assert path.read_text().startswith("drivetrain_plan: 1\n")
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.yaml"]


def test_plan_without_measurements_replaces_only_its_like(tmp_path):
    path = tmp_path / "plan.yaml"
    assert Plan().may_replace(path)
    Plan().save(path)
    assert Plan().may_replace(path)
    FULL.save(path)
    assert FULL.may_replace(path)
    assert not Plan().may_replace(path)
    path.write_text("no plan")
    assert Plan().may_replace(path)


@pytest.mark.parametrize(
    "text", ["import torch\nplan = 'drivetrain_plan.yaml'\n", "notes: mine\n", "\0\1"]
)
def test_file_of_others_is_not_taken_for_a_plan(text, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(PlanFormatError, match="it is there, and is no plan"):
        Plan.require_writable(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text", ["", "# mine\n" + Plan().to_yaml(), "drivetrain_plan: 9"]
)
def test_plan_may_be_written_over_a_plan(text, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    Plan.require_writable(path)
    assert path.read_text() == text


def test_device_is_not_written_over():
    with pytest.raises(PlanFormatError, match="it is there, and is no plan"):
        Plan.require_writable("/dev/null")


def test_plan_saved_to_a_folder_says_what_to_name(tmp_path):
    with pytest.raises(PlanFormatError, match="it is a directory") as caught:
        FULL.save(tmp_path)
    assert caught.value.fix == f"name a file in it, such as {tmp_path / 'plan.yaml'}"
    (tmp_path / "file").touch()
    with pytest.raises(PlanFormatError) as caught:
        FULL.save(tmp_path / "file" / "plan.yaml")
    assert caught.value.fix == "choose another path"


def test_plan_empty_is_the_baseline():
    assert str(Plan()) == "baseline"
    assert Plan.from_yaml(Plan().to_yaml()) == Plan()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drivetrain_plan: 2\nstrategy: []\n", "must be 1, got 2"),
        ("drivetrain_plan: true\nstrategy: []\n", "must be 1, got True"),
        ("strategy: []\n", "must be 1, got None"),
        ("drivetrain_plan: 1\n", "'strategy' must be a list"),
        ("drivetrain_plan: 1\nstrategy: compile\n", "'strategy' must be a list"),
        ("drivetrain_plan: 1\nstrategy: [3]\n", "no `name: options`: 3"),
        ("drivetrain_plan: 1\nstrategy: [{a: 1, b: 2}]\n", "no `name: options`"),
        ("drivetrain_plan: 1\nstrategy: []\nmade: 3\n", "'made' must be a mapping"),
        ("drivetrain_plan: 1\nstrategy: []\nwhy: [{slot: a}]\n", "must have the keys"),
        ("drivetrain_plan: 1\nstrategy: []\nextra: 1\n", "unknown key 'extra'"),
        ("drivetrain_plan: 1\ndrivetrain_plan: 1\nstrategy: []\n", "drivetrain_plan"),
        ("drivetrain_plan: 1\nstrategy: [!!python/name:os.system '']\n", ""),
        ("drivetrain_plan: [\n", ""),
        ("- 1\n", "must be a mapping, got list"),
        ("", "must be a mapping"),
    ],
)
def test_plan_file_that_is_wrong_is_one_error(text, words):
    with pytest.raises(PlanFormatError) as caught:
        Plan.from_yaml(text, "plan.yaml")
    assert words in str(caught.value)
    assert "plan.yaml" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DrivetrainError)


def test_plan_with_a_short_form_says_how_to_write_it():
    with pytest.raises(PlanFormatError, match="no `name: options`") as caught:
        Plan.from_yaml("drivetrain_plan: 1\nstrategy: [{micro_batch: 2}]\n")
    assert caught.value.fix == "write `- name`, or `- name: {option: value}`"


def test_plan_duplicate_key_names_the_key():
    text = "drivetrain_plan: 1\nstrategy:\n- compile:\n    scope: block\n    scope: whole\n"
    with pytest.raises(PlanFormatError, match="scope"):
        Plan.from_yaml(text)


def test_plan_missing_file_is_named(tmp_path):
    with pytest.raises(PlanFormatError, match=r"none\.yaml"):
        Plan.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanFormatError, match=r"binary\.yaml"):
        Plan.load(tmp_path / "binary.yaml")


def test_plan_that_cannot_be_written_keeps_the_old_one(tmp_path):
    path = FULL.save(tmp_path / "plan.yaml")
    blocked = tmp_path / "plan.yaml" / "below.yaml"
    with pytest.raises(PlanFormatError, match="cannot be written"):
        Plan().save(blocked)
    assert Plan.load(path) == FULL


def test_choice_hash_ignores_the_order_of_options():
    a = Choice("x", {"p": 1, "q": None})
    b = Choice("x", {"q": None, "p": 1})
    assert a == b
    assert len({a, b}) == 1


@pytest.mark.parametrize("place", ["file/plan.yaml", "folder"])
def test_plan_place_is_checked_before_anything_is_done(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlanFormatError, match="cannot be written"):
        Plan.require_writable(tmp_path / place)
    Plan.require_writable(tmp_path / "new" / "plan.yaml")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_of_megabytes_is_no_plan(tmp_path):
    path = tmp_path / "plan.yaml"
    entry = "- {slot: a, chose: b, because: c}\n"
    path.write_text("drivetrain_plan: 1\nstrategy: []\nwhy:\n" + entry * 40_000)
    with pytest.raises(PlanFormatError, match="longer than the 1 MiB"):
        Plan.load(path)
    with pytest.raises(PlanFormatError, match="longer than the 1 MiB"):
        Plan.from_yaml(path.read_text())


def test_texts_of_a_plan_command_nothing_to_a_terminal(tmp_path, capsys):
    from drivetrain_core.cli import main

    path = tmp_path / "plan.yaml"
    path.write_text(
        'drivetrain_plan: 1\nstrategy:\n- "\\e]0;title\\a\\e[31mname"\n'
        'made: {device: "\\e[2J"}\n'
        'why:\n- {slot: "\\e[8m", chose: "\\a", because: "\\x9b2J"}\n'
    )
    assert main(["explain", str(path)]) == 1
    for text in capsys.readouterr():
        assert not set(text) & {"\x1b", "\x07", "\x9b"}
        assert "\\x1b" in text
