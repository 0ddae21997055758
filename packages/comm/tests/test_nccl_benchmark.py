"""Tables for NCCL that are made out of what a benchmark measured."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_comm.nccl import (
    Measurement,
    NcclTableError,
    find_winners,
    load_measurements,
    parse_measurements,
    table_from,
)

COLUMNS = "collective,ranks,nodes,size_bytes,algorithm,protocol,channels,time_us\n"


def measured(*times, sizes=(1024, 4096, 16384, 65536), place="all_reduce,8,1"):
    """CSV of times by size: NCCL's own first, then of ring ll, ring simple, tree ll."""
    names = ("default,default,", "ring,ll,", "ring,simple,", "tree,ll,4")
    lines = [
        f"{place},{size},{name},{value}"
        for size, row in zip(sizes, times, strict=True)
        for name, value in zip(names, row, strict=False)
    ]
    return COLUMNS + "\n".join(lines)


def spans(table):
    return [
        (rule.begin_bytes, rule.end_bytes, rule.algorithm, rule.protocol, rule.channels)
        for rule in table.rules
    ]


def test_table_from_keeps_only_what_beats_nccl():
    text = measured((100, 97.1), (100, 97), (100, 90), (100, 120))
    assert spans(table_from(parse_measurements(text))) == [
        (4096, 16385, "ring", "ll", None)
    ]


def test_table_from_merges_neighbours_and_splits_at_the_mean():
    text = measured((9, 5, 8), (9, 5, 8), (9, 6, 5), (9, 9, 9, 4))
    assert spans(table_from(parse_measurements(text))) == [
        (1024, 8192, "ring", "ll", None),
        (8192, 32768, "ring", "simple", None),
        (32768, 65537, "tree", "ll", 4),
    ]


def test_table_from_leaves_a_hole_where_nccl_is_best():
    text = measured((9, 5), (9, 9), (9, 5), (9, 5))
    assert spans(table_from(parse_measurements(text))) == [
        (1024, 1025, "ring", "ll", None),
        (16384, 65537, "ring", "ll", None),
    ]


def test_table_from_takes_the_median_of_repeats_and_keeps_places_apart():
    text = measured((9, 5), sizes=(1024,))
    for time_us in (8.9, 9):
        text += f"\nall_reduce,8,1,1024,ring,ll,,{time_us}"
    text += (
        "\n" + measured((9, 5), sizes=(64,), place="broadcast,4,2").partition("\n")[2]
    )
    winners = find_winners(parse_measurements(text))
    assert [(one.place, one.choice) for one in winners] == [
        (("all_reduce", 8, 1), None),
        (("broadcast", 4, 2), ("ring", "ll", None)),
    ]
    (rule,) = table_from(parse_measurements(text)).rules
    assert (rule.collective, rule.ranks, rule.nodes) == ("broadcast", 4, 2)


@pytest.mark.parametrize(("noisy", "num_rules"), [(19.0, 0), (11.0, 1)])
def test_table_from_keeps_noise_out(noisy, num_rules):
    text = COLUMNS
    for default, ours in ((20, 10), (18, 10), (16, 10), (30, noisy), (30, noisy)):
        text += f"reduce,2,1,64,default,default,,{default}\n"
        text += f"reduce,2,1,64,ring,ll,,{ours}\n"
    assert len(table_from(parse_measurements(text)).rules) == num_rules


def test_table_from_needs_nccls_own_time():
    text = COLUMNS + "reduce,4,2,64,ring,ll,,3"
    with pytest.raises(
        NcclTableError,
        match=r"^results:2: NCCL's own time .*none for reduce of 64 bytes, 4 ranks on 2",
    ):
        table_from(parse_measurements(text))


@given(
    st.lists(
        st.lists(st.integers(1, 60), min_size=4, max_size=4), min_size=1, max_size=12
    ),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_table_from_never_loses_to_nccl_where_it_was_measured(times, data):
    sizes = data.draw(
        st.lists(
            st.integers(1, 300), min_size=len(times), max_size=len(times), unique=True
        )
    )
    found = parse_measurements(measured(*times, sizes=sorted(sizes)))
    table, winners = table_from(found), find_winners(found)
    for winner in winners:
        rule = table.find("all_reduce", winner.size_bytes, ranks=8, nodes=1)
        chosen = rule and (rule.algorithm, rule.protocol, rule.channels)
        assert chosen == winner.choice
        best = min(m.time_us for m in found if m.size_bytes == winner.size_bytes)
        assert winner.time_us <= winner.default_us
        if winner.choice is not None:
            assert winner.time_us == best <= 0.97 * winner.default_us
        else:
            assert best > 0.97 * winner.default_us
    # No range could be left out, or be one with its neighbour.
    starts = [winner.choice for winner in winners]
    changes = [b for a, b in zip([None, *starts], starts, strict=False) if a != b and b]
    assert len(table.rules) == len(changes)


ABOUT = "# drivetrain collective=reduce ranks=2 nodes=1\n"
JSON_ROW = '[{"collective": "reduce", "ranks": 2, "nodes": 1, "size_bytes": 8, %s}]'

NCCL_TESTS = """\
# drivetrain collective=all_reduce ranks=8 nodes=1 algorithm=ring protocol=ll channels=4
# nThread 1 nGpus 8 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong
        1024           256     float     sum      -1    22.10    0.05    0.08      0    21
        2048           512     float     sum      -1    23.35    0.09    0.15      0    22

# Out of bounds values : 0 OK
"""


JSON = """\
[{"collective": "all_reduce", "ranks": 8, "nodes": 1, "size_bytes": 1024,
  "algorithm": "ring", "protocol": "ll", "channels": 4, "time_us": 22.1}]
"""


def test_measurements_come_as_csv_json_and_output_of_nccl_tests(tmp_path):
    one = Measurement(
        collective="all_reduce",
        ranks=8,
        nodes=1,
        size_bytes=1024,
        algorithm="ring",
        protocol="ll",
        channels=4,
        time_us=22.1,
    )
    texts = [
        COLUMNS + "all_reduce,8,1,1024,ring,ll,4,22.1\n\n",
        JSON,
        NCCL_TESTS,
    ]
    for text in texts:
        (tmp_path / "results").write_text(text)
        assert load_measurements(tmp_path / "results")[0] == one
    assert parse_measurements(NCCL_TESTS)[1].time_us == 23.35
    default = NCCL_TESTS.replace("algorithm=ring protocol=ll channels=4", "")
    assert parse_measurements(default)[0].choice is None
    short = '[{"collective": "reduce", "ranks": 2, "nodes": 1, "size_bytes": 8,'
    assert parse_measurements(short + '"time_us": 3}]')[0].choice is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "results:1: the columns must be collective,.*, got nothing"),
        ("size,time\n1,2", "results:1: the columns must be .*, got size,time"),
        (COLUMNS + "reduce,2,1,8", "results:2: a row has 8 values, got 4"),
        (COLUMNS + "send,2,1,8,ring,ll,,3", "results:2: the collective must be one of"),
        (
            COLUMNS + "reduce,2,1,8,best,ll,,3",
            "results:2: the algorithm must be one of",
        ),
        (
            COLUMNS + "reduce,2,1,8,ring,,,3",
            "results:2: the algorithm and the protocol",
        ),
        (COLUMNS + "reduce,2,1,8K,ring,ll,,3", "results:2: size_bytes must be a whole"),
        (COLUMNS + "reduce,2,1,0,ring,ll,,3", "results:2: size_bytes must be 1 to"),
        (COLUMNS + "reduce,2,3,8,ring,ll,,3", "results:2: nodes must be 1 to 2, got 3"),
        (COLUMNS + "reduce,2,1,8,ring,ll,99,3", "results:2: channels must be 1 to 64"),
        (
            COLUMNS + "all_reduce,2,1,8,collnet_chain,simple,4,3",
            "results:2: channels can",
        ),
        (COLUMNS + "reduce,2,1,8,ring,ll,,x", "results:2: time_us must be a number"),
        (
            COLUMNS + "reduce,2,1,8,ring,ll,,nan",
            "results:2: time_us must be more than 0",
        ),
        (COLUMNS + "reduce,2,1,8,ring,ll,,0", "results:2: time_us must be more than 0"),
        (COLUMNS + "reduce,2,1,8,ring,ll,,1_0", "results:2: time_us must be a number"),
        (
            COLUMNS + f"reduce,2,1,8,ring,ll,,{'9' * 400}",
            "results:2: time_us must be more than 0 and finite, got inf",
        ),
        (COLUMNS + '"' + "a" * 200_000, "results:2: it is no CSV"),
        ('"' + "a\\n" * 20_000, "results:.*: it is no CSV"),
        (JSON_ROW % '"time_us": true', "row 0: time_us must be a number, got True"),
        (
            JSON_ROW % f'"time_us": {10**400}',
            "row 0: time_us must be a number, got 1000",
        ),
        (JSON_ROW % f'"time_us": {"9" * 5000}', "results: it is no JSON"),
        (JSON_ROW % '"time_us": [[1]]', "row 0: time_us must be a number, got a list"),
        (
            JSON_ROW % f'"time_us": {"[" * 900}{"]" * 900}',
            "results: row 0: time_us must be a number, got a list|it is no JSON",
        ),
        ("[" * 200_000, "results: it is no JSON"),
        (
            JSON_ROW % '"time_us": 3, "time_us": 4',
            "results: it is no JSON: the key 'time_us' is there twice",
        ),
        (COLUMNS, "results: it holds no measurement"),
        ("[1]", "results: it must be a list of objects"),
        ("{}", "results: it must be a list of objects"),
        ("[", "results: it is no JSON"),
        ('[{"size": 3}]', "results: row 0: its keys must be"),
        ("# nccl-tests\n8 2 float sum -1 3 1 1 0", "results:2: a line '# drivetrain"),
        ("# drivetrain ranks=2", "results:1: it must say collective="),
        (
            "# drivetrain collective=reduce ranks=2 nodes=1\nfailed",
            "results:2: it is no line of nccl-tests",
        ),
        (
            ABOUT + "8 2 float sum -1 3 1 1 0",
            "results:2: the header of nccl-tests, .*, must come before the times",
        ),
        (
            ABOUT + "# size count type redop root cputime algbw busbw",
            "results:2: the header of nccl-tests must name a column 'time'",
        ),
        (
            ABOUT
            + "# size count type redop root time algbw busbw\n8 2 float sum 3 1 1",
            "results:3: the header of nccl-tests has 8 columns, got 7 values",
        ),
    ],
)
def test_measurements_that_are_wrong_are_refused_where_they_stand(text, why):
    with pytest.raises(NcclTableError, match=why) as raised:
        parse_measurements(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


OLD_NCCL_TESTS = """\
# drivetrain collective=all_reduce ranks=8 nodes=1
#                                              out-of-place                in-place
#       size         count    type   redop     time  algbw  busbw  error     time
#        (B)    (elements)                     (us) (GB/s) (GB/s)            (us)
        1024           256   float     sum    22.10   0.05   0.08  2e-07    21.50
"""


def test_time_of_nccl_tests_is_where_the_header_says():
    (old,) = parse_measurements(OLD_NCCL_TESTS)
    assert old.time_us == 22.1
    oldest = OLD_NCCL_TESTS.replace("   redop", "").replace("     sum", "")
    assert parse_measurements(oldest)[0].time_us == 22.1
    # Outputs of several versions may follow each other.
    both = OLD_NCCL_TESTS + NCCL_TESTS + OLD_NCCL_TESTS
    assert [m.time_us for m in parse_measurements(both)] == [22.1, 22.1, 23.35, 22.1]


@pytest.mark.parametrize(
    "text", [COLUMNS + "reduce,2,1,8,ring,ll,,3", JSON, NCCL_TESTS]
)
def test_measurements_may_begin_with_a_byte_order_mark(text, tmp_path):
    file = tmp_path / "results"
    file.write_text(text, encoding="utf-8-sig")
    assert load_measurements(file) == parse_measurements(text)
    assert parse_measurements("\ufeff" + text) == parse_measurements(text)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_measurements_of_a_file_that_cannot_be_are_refused(name):
    with pytest.raises(NcclTableError, match="it cannot be read"):
        load_measurements(name)


@pytest.mark.parametrize("gain", [float("nan"), -0.1, 1.0, float("inf")])
def test_table_from_refuses_a_gain_that_is_none(gain):
    found = parse_measurements(measured((9, 5), sizes=(1024,)))
    with pytest.raises(
        NcclTableError, match="least_gain must be from 0 to less than 1"
    ):
        table_from(found, least_gain=gain)


def test_measurement_refuses_a_time_that_no_float_holds():
    with pytest.raises(NcclTableError, match="time_us must be more than 0 and finite"):
        Measurement(
            collective="reduce", ranks=2, nodes=1, size_bytes=8, time_us=10**400
        )
