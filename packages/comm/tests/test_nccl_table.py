"""Tables for NCCL: their text, read by Python and by the plug-in with the same results."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_comm.nccl import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    HostedTuner,
    NcclTableError,
    Rule,
    Table,
    format_table,
    load_table,
    parse_table,
)
from drivetrain_comm.nccl._overlap import find_overlap
from drivetrain_comm.nccl._rule import channels_refusal

HEADER = "drivetrain-nccl-table 1\n"
RULE = "all_reduce 0B..1KiB 8 1 ring ll"
MOST = 2**31 - 1
NAMES = "broadcast, reduce, all_gather, reduce_scatter, all_reduce"
SIZE = "a size must be a whole number with the unit B, KiB, MiB, GiB or TiB, and below "
SIZE += "8 EiB, got "

# A text, the line that is wrong, and what is wrong with it.
BAD = {
    "empty": ("", 1, "the first line must be 'drivetrain-nccl-table 1', got nothing"),
    "only-comments": (
        "# one\n\n# two",
        3,
        "the first line must be 'drivetrain-nccl-table 1', got nothing",
    ),
    "other-version": (
        "\ndrivetrain-nccl-table  2\n",
        2,
        (
            "the first line must be 'drivetrain-nccl-table 1', got "
            "'drivetrain-nccl-table 2'"
        ),
    ),
    "long-header": (
        "x" * 61,
        1,
        f"the first line must be 'drivetrain-nccl-table 1', got '{'x' * 60}...'",
    ),
    "few-words": (
        HEADER + "all_reduce 0B.. * * ring",
        2,
        (
            "a rule is COLLECTIVE SIZES RANKS NODES ALGORITHM PROTOCOL [OPTION=VALUE ...], "
            "got 5 words"
        ),
    ),
    "collective": (
        HEADER + "all_to_all 0B.. * * ring ll",
        2,
        f"the collective must be one of {NAMES}, got 'all_to_all'",
    ),
    "case": (
        HEADER + "All_Reduce 0B.. * * ring ll",
        2,
        f"the collective must be one of {NAMES}, got 'All_Reduce'",
    ),
    "algorithm": (
        HEADER + "# a comment\n\nall_reduce 0B.. * * auto ll",
        4,
        (
            "the algorithm must be one of tree, ring, collnet_direct, collnet_chain, nvls, "
            "nvls_tree, pat, got 'auto'"
        ),
    ),
    "protocol": (
        HEADER + "all_reduce 0B.. * * ring LL",
        2,
        "the protocol must be one of ll, ll128, simple, got 'LL'",
    ),
    "no-dots": (
        HEADER + "all_reduce 1KiB-2KiB * * ring ll",
        2,
        "sizes must be BEGIN..END, or BEGIN.. without an end, got '1KiB-2KiB'",
    ),
    "no-unit": (HEADER + "all_reduce 0..1KiB * * ring ll", 2, SIZE + "'0'"),
    "wrong-unit": (HEADER + "all_reduce 0B..64KB * * ring ll", 2, SIZE + "'64KB'"),
    "unit-alone": (HEADER + "all_reduce KiB.. * * ring ll", 2, SIZE + "'KiB'"),
    "no-begin": (HEADER + "all_reduce ..1KiB * * ring ll", 2, SIZE + "''"),
    "negative": (HEADER + "all_reduce -1B.. * * ring ll", 2, SIZE + "'-1B'"),
    "fraction": (HEADER + "all_reduce 1.5MiB.. * * ring ll", 2, SIZE + "'1.5MiB'"),
    "three-dots": (HEADER + "all_reduce 1B...2B * * ring ll", 2, SIZE + "'.2B'"),
    "huge": (HEADER + "all_reduce 8388608TiB.. * * ring ll", 2, SIZE + "'8388608TiB'"),
    "many-digits": (
        HEADER + f"all_reduce {'9' * 70}B.. * * ring ll",
        2,
        SIZE + f"'{'9' * 60}...'",
    ),
    "backwards": (
        HEADER + "all_reduce 2KiB..1KiB * * ring ll",
        2,
        "sizes must end after they begin, got '2KiB..1KiB'",
    ),
    "nothing-between": (
        HEADER + "all_reduce 1KiB..1024B * * ring ll",
        2,
        "sizes must end after they begin, got '1KiB..1024B'",
    ),
    "ranks": (
        HEADER + "all_reduce 0B.. 0 * ring ll",
        2,
        f"ranks must be a number from 1 to {MOST}, got '0'",
    ),
    "ranks-any": (
        HEADER + "all_reduce 0B.. -1 * ring ll",
        2,
        f"ranks must be a number from 1 to {MOST}, got '-1'",
    ),
    "nodes": (
        HEADER + f"all_reduce 0B.. * {MOST + 1} ring ll",
        2,
        f"nodes must be a number from 1 to {MOST}, got '{MOST + 1}'",
    ),
    "underscore": (
        HEADER + "all_reduce 0B.. 1_0 * ring ll",
        2,
        f"ranks must be a number from 1 to {MOST}, got '1_0'",
    ),
    "more-nodes": (
        HEADER + "all_reduce 0B.. 2 4 ring ll",
        2,
        "2 ranks cannot be on 4 nodes",
    ),
    "channels": (
        HEADER + RULE + " channels=65",
        2,
        "channels must be a number from 1 to 64, got '65'",
    ),
    "no-channels": (
        HEADER + RULE + " channels=",
        2,
        "channels must be a number from 1 to 64, got ''",
    ),
    "channels-of-collnet": (
        HEADER + "all_reduce 0B.. * 1 collnet_chain simple channels=1",
        2,
        "channels cannot be set for collnet_chain, where NCCL does not check them",
    ),
    "channels-of-nvls": (
        HEADER + "all_reduce 0B.. * * nvls simple channels=1",
        2,
        "channels can be set for nvls on 1 node only: NCCL does not check them",
    ),
    "operations": (
        HEADER + RULE + " num_pipe_ops=any",
        2,
        f"num_pipe_ops must be a number from 1 to {MOST}, got 'any'",
    ),
    "buffers": (
        HEADER + RULE + " reg_buff=yes",
        2,
        "reg_buff must be 0 or 1, got 'yes'",
    ),
    "option": (
        HEADER + RULE + " chunk=4",
        2,
        "an option must be one of channels, num_pipe_ops, reg_buff, got 'chunk'",
    ),
    "no-equals": (
        HEADER + RULE + " channels 4",
        2,
        "an option must be NAME=VALUE, got 'channels'",
    ),
    "twice": (
        HEADER + RULE + " channels=4 channels=4",
        2,
        "channels is given twice",
    ),
    "bytes": (
        HEADER + RULE + " \u00b5=4",
        2,
        "only comments may hold other than printable ASCII, got 0xc2",
    ),
    "control": (
        HEADER + "all_reduce\v0B.. * * ring ll",
        2,
        "only comments may hold other than printable ASCII, got 0x0b",
    ),
    "nul": (
        HEADER + RULE + "\0",
        2,
        "only comments may hold other than printable ASCII, got 0x00",
    ),
    "same": (
        HEADER + f"{RULE}\n# between\n{RULE}",
        4,
        "it overlaps the rule of line 2",
    ),
    "meets": (
        HEADER + "all_reduce 1023B.. 8 1 tree ll\n" + RULE,
        3,
        "it overlaps the rule of line 2",
    ),
    "any-ranks": (
        HEADER + f"{RULE}\nall_gather 0B.. * * ring ll\nall_reduce 10B.. * 1 ring ll",
        4,
        "it overlaps the rule of line 2",
    ),
    "any-crossed": (
        HEADER + "reduce 0B.. 8 * ring ll\nreduce 5B..6B * 2 ring ll reg_buff=1",
        3,
        "it overlaps the rule of line 2",
    ),
    "first-of-several": (
        HEADER + "reduce 0B.. 8 * ring ll\n" * 3,
        3,
        "it overlaps the rule of line 2",
    ),
}

TOLD_APART = """
reduce 0B.. 8 * ring ll num_pipe_ops=1
reduce 0B.. 8 * ring ll num_pipe_ops=2 reg_buff=0
reduce 0B.. 8 * ring ll reg_buff=1 num_pipe_ops=2 channels=4
reduce 0B.. 4 1 ring ll
reduce 0B.. 2 2 ring ll
reduce 0B.. * 4 ring ll num_pipe_ops=3
"""

GOOD = {
    "no-rules": HEADER,
    "layout": "\t# first\r\n\n  drivetrain-nccl-table\t1 # the form\r\n"
    + RULE
    + " # \u00b5",
    "no-newline": HEADER + RULE,
    "zeros": HEADER + "all_reduce 000B..0004KiB 008 1 ring ll channels=064",
    "largest": HEADER + f"reduce {2**63 - 1}B.. {MOST} {MOST} pat simple",
    "channels-of-nvls": HEADER + "all_reduce 0B.. * 1 nvls simple channels=1",
    "next-to-each-other": HEADER + RULE + "\nall_reduce 1KiB.. 8 1 tree ll",
    "told-apart": HEADER + TOLD_APART,
}


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """Returns what the plug-in says of a text that it must refuse."""

    def refuse(text, path=None):
        file = path or tmp_path / "a table.txt"
        if path is None:
            file.write_bytes(text.encode())
        monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(file))
        with HostedTuner(ranks=8, nodes=1) as tuner:
            assert not tuner.is_tuned
            assert tuner.chosen("all_reduce", 100) is None
            (message,) = tuner.messages
        assert message.level == "warn"
        start = "drivetrain tuner: NCCL decides alone: "
        assert message.text.startswith(start)
        return message.text.removeprefix(start)

    return refuse


@pytest.mark.parametrize("name", BAD)
def test_table_is_refused_alike_by_python_and_the_plugin(name, refusal, tmp_path):
    text, line, why = BAD[name]
    wanted = f"{tmp_path / 'a table.txt'}:{line}: {why}"
    assert refusal(text) == wanted
    with pytest.raises(NcclTableError) as raised:
        load_table(tmp_path / "a table.txt")
    assert str(raised.value) == wanted


@pytest.mark.parametrize("name", GOOD)
def test_table_is_taken_alike_by_python_and_the_plugin(name, tmp_path, monkeypatch):
    file = tmp_path / "table"
    file.write_bytes(GOOD[name].encode())
    table = load_table(file)
    monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(file))
    with HostedTuner(ranks=8, nodes=1) as tuner:
        assert tuner.is_tuned, tuner.messages
        (message,) = tuner.messages
    assert message.level == "info"
    assert message.text.endswith(f"hash {table.hash}")
    assert parse_table(format_table(table)) == table


def test_table_that_cannot_be_read_is_refused_alike(refusal, tmp_path):
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    cases = {
        tmp_path / "none": "it cannot be read: No such file or directory",
        tmp_path: "it must be a regular file",
        pipe: "it must be a regular file",
        large: f"it must be at most {16 << 20} bytes",
    }
    for path, why in cases.items():
        assert refusal("", path) == f"{path}: {why}"
        with pytest.raises(NcclTableError) as raised:
            load_table(path)
        assert str(raised.value) == f"{path}: {why}"


def test_table_names_its_source_and_takes_text():
    with pytest.raises(NcclTableError, match=r"^mine:1: the first line must be"):
        parse_table("hello", "mine")
    assert parse_table(HEADER + RULE) == parse_table((HEADER + RULE).encode())


def test_hash_is_of_the_rules_only():
    other = "all_gather 1MiB.. * * ring simple"
    one = parse_table(f"{HEADER}{RULE}\n{other}\n")
    two = parse_table(f"# again\n{HEADER}\n{other} # same\n{RULE.replace(' ', '  ')}")
    three = parse_table(f"{HEADER}{RULE}\n{other} channels=1\n")
    assert one.hash == two.hash
    assert one.hash != three.hash


def rules():
    def make(collective, begin, length, ranks, nodes, algorithm, protocol, rest):
        channels, num_pipe_ops, reg_buff = rest
        if channels_refusal(algorithm, nodes):
            channels = None
        return Rule(
            collective=collective,
            begin_bytes=begin,
            end_bytes=None if length is None else begin + length,
            ranks=ranks,
            nodes=nodes,
            algorithm=algorithm,
            protocol=protocol,
            channels=channels,
            num_pipe_ops=num_pipe_ops,
            reg_buff=reg_buff,
        )

    return st.builds(
        make,
        st.sampled_from(COLLECTIVES[:2]),
        st.integers(0, 40),
        st.none() | st.integers(1, 20),
        st.sampled_from([None, 4, 8]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from(ALGORITHMS),
        st.sampled_from(PROTOCOLS),
        st.tuples(
            st.sampled_from([None, 1, 32]),
            st.sampled_from([None, 1, 3]),
            st.sampled_from([None, False, True]),
        ),
    )


def meets(one, other):
    pairs = [
        (getattr(one, name), getattr(other, name))
        for name in ("ranks", "nodes", "num_pipe_ops", "reg_buff")
    ]
    return (
        one.collective == other.collective
        and all(a is None or b is None or a == b for a, b in pairs)
        and (one.end_bytes is None or other.begin_bytes < one.end_bytes)
        and (other.end_bytes is None or one.begin_bytes < other.end_bytes)
    )


@given(st.lists(rules(), max_size=12))
@settings(max_examples=300, deadline=None)
def test_overlap_is_found_where_two_rules_meet_and_nowhere_else(found):
    places = find_overlap(found)
    pairs = [
        (at, to)
        for to in range(len(found))
        for at in range(to)
        if meets(found[at], found[to])
    ]
    if places is None:
        assert pairs == []
    else:
        assert places in pairs


@given(st.lists(rules(), min_size=2, max_size=12))
@settings(max_examples=100, deadline=None)
def test_overlap_is_named_alike_by_python_and_the_plugin(tmp_path_factory, found):
    lines = [format_table(Table(rules=(rule,))).splitlines()[-1] for rule in found]
    file = tmp_path_factory.mktemp("tables") / "table"
    file.write_text(HEADER + "\n".join(lines))
    try:
        wanted = f"hash {load_table(file).hash}"
    except NcclTableError as error:
        wanted = str(error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(file))
        with HostedTuner(ranks=8, nodes=1) as tuner:
            assert tuner.messages[0].text.endswith(wanted)


@given(st.lists(rules(), max_size=12), st.randoms())
@settings(max_examples=60, deadline=None)
def test_plugin_decides_as_the_rules_say(tmp_path_factory, found, chance):
    kept = []
    for rule in found:
        if not any(meets(rule, other) for other in kept):
            kept.append(rule)
    table = Table(rules=tuple(kept))
    assert parse_table(format_table(table)) == table
    file = tmp_path_factory.mktemp("tables") / "table"
    file.write_text(format_table(table))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(file))
        patch.setenv("DRIVETRAIN_COMM_NCCL_TABLE_HASH", table.hash)
        for ranks, nodes in ((8, 2), (4, 1), (3, 3)):
            with HostedTuner(ranks=ranks, nodes=nodes) as tuner:
                assert tuner.is_tuned, tuner.messages
                check_calls(table, tuner, ranks, nodes, chance)


def check_calls(table, tuner, ranks, nodes, chance):
    for _ in range(30):
        collective = chance.choice(COLLECTIVES)
        size = chance.randrange(70)
        call = {
            "num_pipe_ops": chance.choice([1, 2, 3]),
            "reg_buff": chance.choice([False, True]),
        }
        rule = table.find(collective, size, ranks=ranks, nodes=nodes, **call)
        wanted = None if rule is None else (rule.algorithm, rule.protocol)
        assert tuner.chosen(collective, size, **call) == wanted


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"collective": "send"}, "the collective must be one of broadcast"),
        ({"algorithm": "best"}, "the algorithm must be one of tree"),
        ({"protocol": None}, "the protocol must be one of ll"),
        ({"ranks": 0}, "ranks must be a number from 1"),
        ({"nodes": 1.0}, "nodes must be a number from 1"),
        ({"channels": True}, "channels must be a number from 1 to 64, got True"),
        ({"num_pipe_ops": -1}, "num_pipe_ops must be a number"),
        ({"reg_buff": 2}, "reg_buff must be False or True, got 2"),
        ({"begin_bytes": -1}, "begin_bytes must be a number from 0"),
        ({"begin_bytes": None}, "begin_bytes must be a number from 0"),
        ({"end_bytes": 2**63}, "end_bytes must be a number from 0"),
        ({"begin_bytes": 5, "end_bytes": 5}, "end_bytes must be more than 5, got 5"),
        ({"channels": 2, "algorithm": "collnet_direct"}, "channels cannot be set for"),
        ({"channels": 2, "algorithm": "nvls", "nodes": 2}, "nvls on 1 node only"),
        ({"ranks": 2, "nodes": 3}, "2 ranks cannot be on 3 nodes"),
    ],
    ids=str,
)
def test_rule_refuses_what_no_table_could_say(changes, why):
    right = {"collective": "reduce", "algorithm": "ring", "protocol": "ll"}
    with pytest.raises(NcclTableError, match=why):
        Rule(**{**right, **changes})


def test_table_refuses_rules_that_overlap():
    rule = Rule(collective="reduce", algorithm="ring", protocol="ll")
    with pytest.raises(NcclTableError, match="rule 1 overlaps rule 0"):
        Table(rules=(rule, rule))


def test_ten_thousand_rules_are_compared_by_class():
    ranks = [None, *range(2, 101)]
    many = [
        Rule(
            collective="all_reduce",
            algorithm="ring",
            protocol="ll",
            begin_bytes=10 * at + (5 if number is None else 0),
            end_bytes=10 * at + (10 if number is None else 5),
            ranks=number,
        )
        for number in ranks
        for at in range(100)
    ]
    random.Random(5).shuffle(many)
    assert find_overlap(many) is None
    wide = Rule(collective="all_reduce", algorithm="ring", protocol="ll", nodes=1)
    assert find_overlap([*many, wide])[1] == len(many)


def test_table_with_a_byte_order_mark_is_refused_by_both(refusal, tmp_path):
    said = refusal("\ufeff" + HEADER)
    with pytest.raises(
        NcclTableError, match=r"begins with a byte order mark$"
    ) as raised:
        load_table(tmp_path / "a table.txt")
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_table_of_a_file_that_cannot_be_is_refused(name):
    with pytest.raises(NcclTableError, match="it cannot be read"):
        load_table(name)


@pytest.mark.parametrize("text", [chr(0xD800), chr(0xDC80)])
def test_table_of_broken_text_is_refused(text):
    with pytest.raises(NcclTableError, match="table:1: only comments may hold other"):
        parse_table(text)
    assert parse_table(HEADER + "# " + text).rules == ()
