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
        NcclTableError, match="there is none for reduce of 64 bytes, 4 ranks on 2 nodes"
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
    ],
)
def test_measurements_that_are_wrong_are_refused_where_they_stand(text, why):
    with pytest.raises(NcclTableError, match=why):
        parse_measurements(text)
