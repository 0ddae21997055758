"""Graphs of links: ways, files, and what is refused."""

import json
from types import SimpleNamespace

import pytest

from drivetrain_comm.compiler import (
    LinkGraph,
    LinkGraphError,
    ScheduleError,
    Wire,
    degraded,
    from_matrix,
    full_mesh,
    graph_from_json,
    graph_to_json,
    hosts,
    load_graph,
    ring,
    schedule_of,
    simulate,
    star,
    torus,
)


def wire(a, b, bytes_per_s=1e9, delay_s=0.0):
    return Wire(source=a, target=b, bytes_per_s=bytes_per_s, delay_s=delay_s)


def test_way_is_the_widest_without_ranks_in_between():
    graph = LinkGraph(
        name="x",
        num_ranks=3,
        wires=(
            *(wire("r0", s, w) for s, w in (("a", 1e9), ("b", 2e9))),
            *(wire(s, "r1", w) for s, w in (("a", 1e9), ("b", 2e9))),
            # Wider still, but over a rank.
            wire("r0", "r2", 9e9),
            wire("r2", "r1", 9e9),
            wire("r1", "r0", 9e9),
        ),
    )
    assert [w.label for w in graph.route(0, 1)] == ["r0 -> b", "b -> r1"]
    assert graph.route(1, 2) == ()
    assert set(graph.pairs) == {(0, 1), (0, 2), (2, 1), (1, 0)}


def test_delay_is_that_of_the_shortest_way_whoever_passes_it_on():
    graph = ring(6, 1e9, 1e-3)
    assert graph.delay_s(0, 3) == pytest.approx(3e-3)
    assert graph.delay_s(0, 5) == pytest.approx(1e-3)


def test_common_graphs_have_their_wires():
    assert len(star([1e9] * 3).wires) == 6
    assert len(ring(2, 1e9).wires) == 2
    assert len(ring(5, 1e9).wires) == 10
    assert len(full_mesh(4, 1e9).wires) == 12
    assert len(torus(2, 2, 1e9).wires) == 8
    assert len(torus(3, 4, 1e9).wires) == 48
    graph = hosts([1e9, 2e9], 2, 1e10, 4e-6, 2e-6)
    assert graph.delay_s(0, 1) == pytest.approx(2e-6)
    assert graph.delay_s(0, 2) == pytest.approx(6e-6)


def test_measured_links_share_the_port_of_their_rank():
    links = SimpleNamespace(
        delay_s=((0.0, 1e-3, 1e-3), (1e-3, 0.0, 1e-3), (1e-3, 1e-3, 0.0)),
        bytes_per_s=((0.0, 1e9, 5e8), (1e9, 0.0, 1e9), (5e8, 1e9, 0.0)),
    )
    apart = from_matrix(links, shares_ports=False)
    both = schedule_of("", "broadcast", 3, [0], [(0, 1, 0, False), (0, 2, 0, False)])
    assert simulate(both, apart, 1e9) == pytest.approx(2.001)
    shared = from_matrix(links)
    assert simulate(both, shared, 1e9) == pytest.approx(2.001)
    equal = schedule_of("", "broadcast", 3, [1], [(1, 0, 0, False), (1, 2, 0, False)])
    assert simulate(equal, apart, 1e9) == pytest.approx(1.001)
    assert simulate(equal, shared, 1e9) == pytest.approx(2.001)


@pytest.mark.parametrize(
    ("wires", "message"),
    [
        ([], "2 of 2 ranks have no wire out"),
        ([wire("r0", "r1"), wire("r1", "s")], "rank 1 does not reach rank 0"),
        ([wire("r0", "r01"), wire("r1", "r0")], "ends at 'r01'"),
        ([wire("r0", "r\u0661"), wire("r1", "r0")], "rank 0 does not reach rank 1"),
        ([wire("r0", "a\n"), wire("r1", "r0")], "ends at 'a"),
        ([wire("r0", "r" + "1" * 5000)], "ends at"),
        ([wire("r0", "r2")], "ends at 'r2', and ranks are r0 to r1"),
        ([wire("r0", "")], "ends at ''"),
        ([wire("r0", "r0")], "leads nowhere"),
        ([wire("r0", "r1", 0)], "must carry more than 0 bytes_per_s, got 0"),
        ([wire("r0", "r1", -1)], "must carry more than 0 bytes_per_s, got -1"),
        ([wire("r0", "r1", float("inf"))], "must carry more than 0"),
        ([wire("r0", "r1", float("nan"))], "must carry more than 0"),
        ([wire("r0", "r1", 1, -1.0)], "delay_s of r0 -> r1 must be 0 or more"),
        ([wire("r0", "r1"), wire("r0", "r1")], "there are two wires r0 -> r1"),
    ],
)
def test_graphs_that_make_no_sense_are_refused(wires, message):
    with pytest.raises(LinkGraphError, match=message):
        LinkGraph(name="x", num_ranks=2, wires=tuple(wires))


def test_graphs_of_one_rank_are_refused():
    for make in (lambda: star([1e9]), lambda: ring(1, 1e9), lambda: torus(1, 1, 1e9)):
        with pytest.raises(LinkGraphError, match="two ranks are needed"):
            make()


def test_degraded_graph_lacks_what_was_taken():
    graph = full_mesh(3, 1e9)
    assert degraded(graph, "r0", "r1", 0.5).route(0, 1)[0].bytes_per_s == 5e8
    assert degraded(graph, "r0", "r1", 0.0).route(0, 1) == ()
    with pytest.raises(LinkGraphError, match="no wire r0 -> r9"):
        degraded(graph, "r0", "r9", 0.5)
    with pytest.raises(LinkGraphError, match="1 of 2 ranks have no wire out"):
        degraded(star([1e9] * 2), "r0", "switch", 0.0)
    for share in (-1.0, float("nan")):
        with pytest.raises(LinkGraphError, match="share must be 0 or more"):
            degraded(graph, "r0", "r1", share)


def test_way_is_the_nearest_of_those_that_are_as_wide():
    graph = LinkGraph(
        name="x",
        num_ranks=2,
        wires=(
            wire("r0", "a", 10e9, 1.0),
            wire("r0", "b", 5e9),
            wire("b", "a", 5e9),
            wire("a", "r1", 5e9),
            wire("r1", "r0"),
        ),
    )
    assert sum(w.delay_s for w in graph.route(0, 1)) == 0.0


def test_very_many_ranks_without_wires_are_refused_at_once():
    with pytest.raises(LinkGraphError, match="999999998 of 1000000000 ranks have"):
        LinkGraph(name="x", num_ranks=10**9, wires=(wire("r0", "r1"), wire("r1", "r0")))


def test_schedule_that_has_no_way_is_an_error():
    schedule = schedule_of("", "broadcast", 4, [0], [(0, 2, 0, False)])
    with pytest.raises(ScheduleError, match="has no way from 0 to 2"):
        simulate(schedule, ring(4, 1e9), 1e6)
    with pytest.raises(ScheduleError, match="is for 4 ranks, and ring of 5 has 5"):
        simulate(schedule, ring(5, 1e9), 1e6)


def test_graphs_of_files_are_as_they_were(tmp_path):
    graph = hosts([1e9, 2e9], 2, 1e10, 4e-6, 2e-6)
    (tmp_path / "links.json").write_text(graph_to_json(graph))
    assert load_graph(tmp_path / "links.json") == graph
    both = (
        '{"drivetrain_links": 1, "name": "p", "num_ranks": 2, "wires": '
        '[{"source": "r0", "target": "r1", "bytes_per_s": 5, "both": true}]}'
    )
    assert len(graph_from_json(both).wires) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "f: it is no JSON"),
        ("[]", 'f: it must be an object with "drivetrain_links": 1'),
        ("[" * 100_000, "f: it is no JSON"),
        ('{"name": "x", "name": "y"}', "f: it is no JSON: the key 'name'"),
        (
            '{"drivetrain_links": 1, "name": "x", "num_ranks": 2, "wires": '
            '[{"source": "r0", "target": "r1", "bytes_per_s": 1' + "0" * 400 + "}]}",
            r"f: wires\[0\]: bytes_per_s is too large",
        ),
        ('{"drivetrain_links": 1}', "f: name must be a str, got None"),
        (
            '{"drivetrain_links": 1, "name": "x", "num_ranks": 2, "wire": []}',
            "f: no field 'wire'",
        ),
        (
            '{"drivetrain_links": 1, "name": "x", "num_ranks": 2.5, "wires": []}',
            "f: num_ranks must be a int, got 2.5",
        ),
        (
            '{"drivetrain_links": 1, "name": "x", "num_ranks": 2, "wires": [7]}',
            r"f: wires\[0\]: a wire is an object",
        ),
        (
            (
                '{"drivetrain_links": 1, "name": "x", "num_ranks": 2, "wires": '
                '[{"source": "r0", "target": "r1", "gbps": 5}]}'
            ),
            r"f: wires\[0\]: no field 'gbps'",
        ),
        (
            (
                '{"drivetrain_links": 1, "name": "x", "num_ranks": 2, "wires": '
                '[{"source": "r0", "target": "r1", "bytes_per_s": "fast"}]}'
            ),
            r"f: wires\[0\]: bytes_per_s must be a float, got 'fast'",
        ),
    ],
)
def test_files_that_describe_no_graph_are_refused(text, message):
    with pytest.raises(LinkGraphError, match=message):
        graph_from_json(text, "f")


def test_measured_links_are_a_graph(tmp_path):
    rows = {"delay_s": [[0, 1e-3], [1e-3, 0]], "bytes_per_s": [[0, 1e9], [2e9, 0]]}
    graph = graph_from_json(json.dumps({"links": rows, "hosts": [[0], [1]]}))
    assert graph.num_ranks == 2
    assert graph.delay_s(0, 1) == 1e-3
    assert min(w.bytes_per_s for w in graph.route(1, 0)) == 2e9
    for wrong in ({}, {"delay_s": [[0]]}, {**rows, "bytes_per_s": [[0, "x"], [1, 0]]}):
        with pytest.raises(LinkGraphError, match="f: these are no measured links"):
            graph_from_json(json.dumps({"links": wrong}), "f")


def test_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(LinkGraphError, match="cannot be read"):
        load_graph(tmp_path / "none.json")
