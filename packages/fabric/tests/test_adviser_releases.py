"""The data files of NCCL's releases: what they hold, and how they are made."""

import json
import os
import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from drivetrain_fabric.adviser import Assignment, Facts, advise
from drivetrain_fabric.adviser._check import check_settings
from drivetrain_fabric.adviser._versions import (
    nearest_name,
    parse_version,
    release_of,
    settings_of,
    span_of,
    wrong_value,
)

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import nccl_variables

FOLDER = files("drivetrain_fabric.adviser").joinpath("nccl")
RELEASES = {
    file.name.removesuffix(".json"): json.loads(file.read_text("utf-8"))
    for file in sorted(FOLDER.iterdir(), key=str)
}
READ = {name: said for name, said in RELEASES.items() if "base" not in said}
KINDS = {"number", "flag", "level", "list", "words", "text"}


def test_each_minor_release_has_a_file():
    minors = {parse_version(name)[1] for name in RELEASES}
    assert minors == set(range(3, 33))
    assert len(READ) == len(RELEASES) - 2


def test_files_are_small():
    sizes = [len(file.read_bytes()) for file in FOLDER.iterdir()]
    assert sum(sizes) < 1_500_000


@pytest.mark.parametrize("name", READ)
def test_each_variable_of_a_source_is_known_to_its_version(name):
    said = READ[name]
    known = settings_of(parse_version(name))
    assert said["version"] == name
    assert f"/v{name}-" in said["source"]
    assert len(said["variables"]) >= 30
    for variable, row in said["variables"].items():
        one = known[variable]
        assert one.kind in KINDS
        assert re.fullmatch(r"src/[\w/.-]+\.(cc|cu|h)(\.in)?:[1-9]\d*", one.line)
        assert nearest_name(variable, parse_version(name)) == variable
        if one.default is not None and one.kind in ("number", "flag"):
            assert re.fullmatch(r"auto|-?\d+", one.default)
        if "range" in row and one.default not in (None, "auto"):
            assert wrong_value(variable, one.default, parse_version(name)) is None
        for word in one.words:
            assert wrong_value(variable, word, parse_version(name)) is None


@pytest.mark.parametrize("name", ["2.31", "2.32"])
def test_files_without_a_public_source_say_what_they_go_by(name):
    said = RELEASES[name]
    assert "manual" in said["source"]
    for row in said["variables"].values():
        assert "NCCL" in row["line"]
    assert settings_of(parse_version(name)).keys() > settings_of((2, 30, 7)).keys()


def test_version_without_a_file_goes_by_the_nearest_older_one():
    assert release_of((2, 27, 9)) == (2, 27, 7)
    assert release_of((2, 28, 0)) == (2, 27, 7)
    assert release_of((2, 40, 1)) == (2, 32)
    assert release_of((2, 1, 4)) == (2, 3, 5)
    told = advise(Facts(nccl=(2, 28, 8))).nccl
    assert told == "NCCL 2.28.8 (given, by the settings of 2.28.7)"
    assert advise(Facts(nccl=(2, 28, 9))).nccl == "NCCL 2.28.9 (given)"


def test_span_of_a_variable():
    assert span_of("NCCL_DEBUG") == ("", "")
    assert span_of("NCCL_PROXY_PROFILE")[1] == "2.23.4"
    assert span_of("NCCL_NONSENSE") is None


def test_advice_and_problems_name_the_line_of_the_source():
    lines = (
        Assignment(name="NCCL_MAX_NCHANNELS", value="8"),
        Assignment(name="NCCL_IB_RETRY_CNT", value="13"),
    )
    facts = Facts(settings=lines, ranks=8, nccl=(2, 29, 7))
    advice = [one for one in advise(facts).advice if one.setting.startswith("NCCL_")]
    assert advice
    for one in advice:
        line = settings_of(facts.nccl)[one.setting].line
        assert one.source.endswith(f"; NCCL 2.29.7, {line}")
    (problem,) = check_settings(facts)
    line = settings_of(facts.nccl)["NCCL_IB_RETRY_CNT"].line
    assert problem.because == f"it must be 0 to 7, got 13 (2.29.7, {line})"


@pytest.mark.parametrize(
    ("name", "value", "version", "said"),
    [
        # Lists of older releases have no functions, and unknown words do no harm.
        ("NCCL_ALGO", "Ring,Tre", (2, 18, 3), "passes over 'Tre': it knows Tree, Ring"),
        ("NCCL_ALGO", "allreduce:ring", (2, 23, 4), "passes over 'allreduce:ring'"),
        ("NCCL_ALGO", "allreduce:ring", (2, 24, 3), None),
        (
            "NCCL_ALGO",
            "allredoce:ring",
            (2, 24, 3),
            "start with 'allredoce': it knows B",
        ),
        ("NCCL_ALGO", "ring;tree", (2, 29, 7), "does not start with 'tree'"),
        ("NCCL_ALGO", "ring;;Reduce:^tree,;", (2, 29, 7), None),
        ("NCCL_ALGO", "reduce:tree:any", (2, 29, 7), None),
        ("NCCL_ALGO", "PAT", (2, 22, 3), "passes over 'PAT'"),
        ("NCCL_ALGO", "PAT", (2, 23, 4), None),
        ("NCCL_P2P_LEVEL", "C2C", (2, 18, 3), "one of LOC"),
        ("NCCL_DEBUG", "ATTN", (2, 30, 7), "one of VERSION"),
        ("NCCL_DEBUG", "attn", (2, 32, 3), None),
        ("NCCL_SET_THREAD_NAME", "True", (2, 30, 7), None),
        ("NCCL_SET_THREAD_NAME", "yes", (2, 30, 7), "one of 0, 1"),
        ("NCCL_SET_THREAD_NAME", "True", (2, 29, 7), "NCCL reads that as 0"),
        # What the manual has no words for is a number to the source.
        ("NCCL_GIN_TYPE", "gdaki", (2, 29, 7), "NCCL reads that as 0"),
        ("NCCL_IB_TC", "-1", (2, 29, 7), None),
        ("NCCL_IB_TC", "-1", (2, 18, 3), "0 to 255"),
        ("NCCL_MNNVL_UUID", str(2**64 - 1), (2, 29, 7), "it must be"),
        ("NCCL_GIN_TYPE", "9" * 40, (2, 29, 7), "it must be"),
    ],
)
def test_values_are_read_as_the_source_of_the_version_reads_them(
    name, value, version, said
):
    found = wrong_value(name, value, version)
    assert found is None if said is None else said in found


def test_variables_of_a_source_that_is_made_up():
    sources = {
        "src/a.cc": """
            #define LIMIT (LESS + 1)
            #define LESS 3
            NCCL_PARAM(One, "ONE", 1LL << 20);
            NCCL_PARAM(Unset, "UNSET", UNDEFINED_INT);
            NCCL_PARAM(Many, "MAX_CTAS", -2);
            const char* text = ncclGetEnv("NCCL_TEXT");
            const char* number = getenv("NCCL_NUMBER");
            if (number) value = strtoll(number, NULL, 0);
            NCCLCHECK(ncclGetLevel(&level, "NCCL_A_DISABLE", "NCCL_A_LEVEL"));
        """,
        "src/b.h": """
            #define MAXCHANNELS LIMIT
            #define UNDEFINED_INT INT_MIN
            const char* topoPathTypeStr[] = { "LOC", "SYS", "NET" };
            DEFINE_NCCL_PARAM(flag, bool, NCCL_FLAG, true, NONE, DEFAULT, "(a, b)");
            DEFINE_NCCL_PARAM(word, kind, NCCL_WORD, LOW, NONE,
                              ncclParamOneOf<kind>(makeOptions(
                                makeOption("LOW", 1, ""), makeOption("HIGH", 2, ""))), "");
            if (ncclGetEnv("NCCL_ONE")) warn();
        """,
    }
    found = nccl_variables.variables(sources)
    assert sorted(found) == [
        "NCCL_A_DISABLE",
        "NCCL_A_LEVEL",
        "NCCL_FLAG",
        "NCCL_MAX_CTAS",
        "NCCL_NUMBER",
        "NCCL_ONE",
        "NCCL_TEXT",
        "NCCL_UNSET",
        "NCCL_WORD",
    ]
    assert found["NCCL_ONE"] == {
        "kind": "number",
        "default": "1048576",
        "line": "src/a.cc:4",
    }
    assert found["NCCL_UNSET"]["default"] == "auto"
    assert found["NCCL_MAX_CTAS"]["range"] == [1, 4]
    assert found["NCCL_A_LEVEL"]["words"] == ["LOC", "SYS"]
    assert found["NCCL_FLAG"]["default"] == "1"
    assert found["NCCL_WORD"]["words"] == ["LOW", "HIGH"]
    assert found["NCCL_NUMBER"]["kind"] == "number"
    assert found["NCCL_TEXT"] == {"kind": "text", "line": "src/a.cc:7"}


def test_file_is_what_the_source_of_the_release_says():
    repository = os.environ.get("NCCL_REPOSITORY")
    if not repository:
        pytest.skip("NCCL_REPOSITORY names no clone of NCCL")
    tag = nccl_variables.releases(Path(repository))["2.29.7"]
    found = nccl_variables.read_release(Path(repository), tag)
    text = nccl_variables.as_text("2.29.7", tag, found)
    assert FOLDER.joinpath("2.29.7.json").read_text("utf-8") == text
