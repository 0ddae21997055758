"""`drivetrain-elastic check`: a table, JSON, and an exit code."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch.distributed import FileStore

from drivetrain_elastic._client._token import write_token
from drivetrain_elastic._commands._check_options import populate_check_parser
from drivetrain_health.checks import NodeReport
from drivetrain_health.checks._check_nodes import Together
from drivetrain_health.decisions.node_check import judge
from drivetrain_health.decisions.node_results import NodeCheckConfig, Result
from drivetrain_testing import check_wrong_use, run_subcommand

run_one = partial(run_subcommand, "drivetrain-elastic")
wrong_use = partial(check_wrong_use, "drivetrain-elastic")

QUICK = ["--checks", "loopback", "--measure-s", "0.05", "--join-s", "60"]


def run(*argv):
    return run_one("check", populate_check_parser, argv)


@pytest.fixture
def reports(monkeypatch):
    """Has this node, or all of them, measure what is given."""

    def of_one(**said):
        report = NodeReport("a", {"x_gflops": 12.345}, **said)
        monkeypatch.setattr(
            "drivetrain_elastic._commands._check_node.check_node",
            lambda *_, **__: report,
        )

    def of_four(**said):
        groups = (("a", "b"), ("c", "d"))
        results = [
            Result(r, node, group, {"x_gflops": 100.0}, received="r")._replace(
                **said.get(node, {})
            )
            for r in range(2)
            for group in groups
            for node in group
        ]
        verdict = judge("abcd", [groups, groups], results, NodeCheckConfig())
        report = NodeReport("a", {"x_gflops": 100.0})
        monkeypatch.setattr(
            "drivetrain_elastic._commands._check_nodes.check_together",
            lambda *_, **__: Together(verdict, tuple(results), report),
        )

    return of_one, of_four


def test_node_alone_is_shown_to_programs(reports, capsys):
    reports[0](digests={"cpu": "ab"})
    assert run("--node", "a", *QUICK, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_good"]
    assert found["node"] == "a"
    assert found["measures"] == {"x_gflops": 12.345}
    assert found["digests"] == {"cpu": "ab"}


def test_node_that_is_good_is_shown_with_what_was_skipped(reports, capsys):
    reports[0](skipped={"rdma": "no tool"}, digests={"cpu": "ab"})
    assert run() == 0
    assert capsys.readouterr().out.splitlines() == [
        "measure       a",
        "x_gflops  12.35",
        "bits ab: cpu",
        "skipped rdma: no tool",
        "a has passed",
    ]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"failures": {"disk": "no room"}}, "a failed in disk: no room"),
        ({"wrong_bits": "the output differs"}, "a failed: the output differs"),
    ],
)
def test_node_that_fails_is_exit_code_1(reports, capsys, said, line):
    reports[0](**said)
    assert run() == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [line, "a has FAILED"]


@pytest.mark.slow
def test_several_nodes_are_shown_against_their_median(reports, capsys, tmp_path):
    reports[1](c={"measures": {"x_gflops": 25.0}})
    where = ["--nodes", "4", "--init-method", f"file://{tmp_path}/store"]
    assert run(*where) == 1
    assert capsys.readouterr().out.splitlines() == [
        "measure     a  median  lowest  on",
        "x_gflops  100     100      25   c",
        "c: SLOW: x_gflops of 25 at best, 4.0 times less than the median, 100",
        "3 of 4 nodes have passed, in 2 rounds",
    ]
    assert run(*where, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"]["c"]["outcome"] == "slow"
    assert found["rates"]["x_gflops"]["c"] == 25.0
    assert found["medians"] == {"x_gflops": 100.0}


@pytest.mark.slow
def test_several_nodes_that_are_good_are_exit_code_0(reports, capsys, tmp_path):
    reports[1]()
    assert run("--nodes", "4", "--init-method", f"file://{tmp_path}/store") == 0
    assert "4 of 4 nodes have passed" in capsys.readouterr().out


@pytest.mark.slow
def test_two_nodes_meet_at_a_master(job, tmp_path, capsys):
    master = job()
    write_token(tmp_path / "token", master.token)
    where = ["--rdzv-endpoint", master.address, "--token-file", str(tmp_path / "token")]
    options = ["--nodes", "2", "--json", *QUICK, *where]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda node: run("--node", node, *options), "ab"))
    assert codes == [0, 0]
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["nodes"] == second["nodes"]
    assert list(first["nodes"]) == ["a", "b"]
    assert sorted(one["this"]["node"] for one in (first, second)) == ["a", "b"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nodes", "2"], "give one of them"),
        (["--nodes", "2", "--init-method", "udp://a:1"], "must be file:///PATH or tcp"),
        (["--nodes", "2", "--init-method", "tcp://a"], "must be file:///PATH or tcp"),
        (["--nodes", "2", "--init-method", "tcp://a:x"], "must be file:///PATH or tcp"),
        (["--nodes", "2", "--init-method", "file://host/x"], "must be file:///PATH"),
        (["--nodes", "2", "--rdzv-endpoint", "a:1"], "DRIVETRAIN_ELASTIC_TOKEN"),
        (["--nodes", "2", "--rdzv-endpoint", "a:65536"], "a port to 65535"),
        (["--nodes", "2", "--init-method", "tcp://a:65536"], "must be file:///PATH"),
        (["--nodes", "0"], "--nodes: must be at least 1, got 0"),
        (["--num-threads", "0"], "--num-threads: must be at least 1, got 0"),
        (["--checks", "speed"], "--checks must be one or more of"),
        (["--measure-s", "nan"], "--measure-s: must be a number"),
        (["--measure-s", "0"], "--measure-s must be a number of at least 0.01"),
        (["--limit-s", "0.5", "--measure-s", "1"], "--limit-s must be more than --mea"),
        (["--folder", "/nonexistent"], "--folder must be a folder that exists"),
    ],
)
def test_options_that_make_no_sense_are_wrong_use(capsys, argv, says):
    wrong_use(run(*argv), *capsys.readouterr(), says)


def test_file_of_switches_that_is_missing_is_a_failure(capsys):
    assert run("--switches", "/nowhere") == 1
    said = "--switches /nowhere cannot be read: No such file or directory"
    assert capsys.readouterr() == ("", f"drivetrain-elastic: {said}\n")


def test_file_of_switches_is_a_table_of_names(capsys, tmp_path, reports):
    place = tmp_path / "switches.json"
    place.write_text('{"a": 3}')
    assert run("--switches", str(place)) == 1
    assert "must hold one table" in capsys.readouterr().err
    place.write_text('{"a": "s1"}')
    reports[0]()
    assert run("--switches", str(place)) == 0


def test_check_of_nothing_has_not_passed(capsys):
    assert run("--node", "a", "--checks", "exchange") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was checked"


def test_threads_that_computed_are_shown(reports, capsys, monkeypatch):
    report = NodeReport("a", {"compute_gflops": 12.0})
    monkeypatch.setattr(
        "drivetrain_elastic._commands._check_node.check_node", lambda *_, **__: report
    )
    assert run("--num-threads", "3") == 0
    assert "threads 3" in capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_file_of_an_earlier_check_is_refused(capsys, tmp_path):
    where = ["--nodes", "2", *QUICK, "--init-method", f"file://{tmp_path}/store"]
    # Who holds it keeps the file from being removed with the last node.
    with ThreadPoolExecutor(2) as pool:
        held = FileStore(f"{tmp_path}/store", 3)
        assert list(pool.map(lambda node: run("--node", node, *where), "ab")) == [0, 0]
    assert run("--node", "c", *where) == 1
    assert "was used by an earlier check" in capsys.readouterr().err
    del held
