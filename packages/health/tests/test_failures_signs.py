"""Every sign is found in its own example, and a user's own file of signs counts as ours do."""

from collections import Counter

import pytest

from drivetrain_core import ProgramError
from drivetrain_health.failures import (
    LADDERS,
    Evidence,
    FailureClass,
    OutputDigest,
    diagnose,
)
from drivetrain_health.failures._clue import SIGNS_VARIABLE, find_sign, signs

TABLES = ("sign", "certain", "explaining", "out_of_memory", "program", "frame", "type")
TABLES += ("reported",)
ALL = [(table, sign) for table in TABLES for sign in signs(table)]
OWN = """
[[sign]]
class = "service"
cause = "licence"
blames_node = false
[sign.patterns]
'seat \\d+ is taken' = "Seat 17 is taken"
"""


@pytest.mark.parametrize(
    ("table", "sign"),
    ALL,
    ids=[f"{at}-{one.clue.cause}" for at, (_, one) in enumerate(ALL)],
)
def test_sign_is_the_strongest_in_its_own_example(table, sign):
    found = find_sign([sign.example], table)
    assert found[:2] == sign.clue[:2]
    assert found.reason == " ".join(sign.example.split())
    assert not (sign.clue.is_echo and sign.clue.blames_node)


def test_classes_of_signs_have_a_ladder_and_most_have_several_signs():
    counts = Counter(sign.clue.failure_class for _, sign in ALL)
    assert set(counts) < set(LADDERS)
    unseen = {FailureClass.STRAGGLER, FailureClass.CORRUPTION}
    assert set(FailureClass) - set(counts) == unseen


def test_every_sign_is_found_far_before_the_end_of_an_output():
    for sign in signs("sign"):
        digest = OutputDigest(end_bytes=100)
        digest.write(b"a quiet line\n" + sign.example.encode() + b"\n")
        digest.write(b"a quiet line\n" * 100)
        assert sign.example in digest.text(), sign.example


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Makes a text the user's own file of signs."""

    def use(text):
        file = tmp_path / "signs.toml"
        file.write_text(text)
        monkeypatch.setenv(SIGNS_VARIABLE, str(file))
        return file

    return use


def told(output):
    return diagnose(Evidence(worker="a", node="n", exit_code=1, output=output))


def test_sign_of_ones_own_is_known_and_comes_first(own):
    text = "KeyError: 'seat'\nseat 4 is taken, no space left on device\n"
    assert told(text).cause == "disk-full"
    own(OWN)
    found = told(text)
    assert (found.failure_class, found.cause, found.node) == ("service", "licence", "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("Seat 17", "Chair 17"), "is not found in its example"),
        (("service", "weather"), "weather"),
        (("is taken'", "(is taken'"), "unterminated"),
        (("cause", "couse"), "cause"),
        (("[[sign]]", "[[sign"), "line"),
    ],
)
def test_file_of_signs_that_is_none_is_refused_with_the_reason(own, change, says):
    file = own(OWN.replace(*change))
    with pytest.raises(ProgramError, match=says) as error:
        signs("sign")
    assert str(file) in str(error.value)


def test_file_of_signs_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv(SIGNS_VARIABLE, "/no such file")
    with pytest.raises(ProgramError, match="no such file"):
        signs("sign")
