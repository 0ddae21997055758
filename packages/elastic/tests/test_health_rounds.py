"""Nodes that are checked together agree, whatever some of them say, or do not say."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import DistNetworkError, FileStore, HashStore, PrefixStore

from drivetrain_core import DistributedError, ProgramError
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._master_store import MasterStore
from drivetrain_health.checks import CheckConfig, NodeReport
from drivetrain_health.checks._check_nodes import confer
from drivetrain_health.checks._round_table import RoundTable
from drivetrain_health.checks._tcp_rendezvous_store import tcp_rendezvous_store
from drivetrain_health.checks._wire import read_result, write_result
from drivetrain_health.decisions.node_check import Outcome
from drivetrain_health.decisions.node_results import Result

CHECKS = ("loopback", "exchange")
CONFIG = CheckConfig(checks=CHECKS, limit_s=5.0, round_s=20.0, join_s=20.0)
QUICK = replace(CONFIG, measure_s=0.1, limit_s=0.2, round_s=0.5, join_s=0.5)
GOOD = {"x_gflops": 100.0}


def report(node, **said):
    return NodeReport(node, measures=GOOD)._replace(**said)


def play(stores, nodes, says=None, config=CONFIG, wanted=None):
    """Has each node confer in a thread; returns what came of each, by its name."""
    says = says or {}

    def run(node, store):
        def measure(group, store_of_round, is_whole):
            assert is_whole
            assert isinstance(store_of_round, PrefixStore)
            received = "r"
            if any(says.get(member) == "network" for member in group):
                return report(node, network_failure="timed out")
            say = says.get(node)
            if callable(say):
                say = say()
            return report(node, received=received, **(say or {}))

        return confer(store, node, wanted or len(nodes), config, measure)

    with ThreadPoolExecutor(len(nodes)) as pool:
        running = {n: pool.submit(run, n, stores(n)) for n in nodes}
        return {n: one.result() for n, one in running.items()}


def verdict_of_all(outcomes):
    verdicts = [one.verdict for one in outcomes.values()]
    assert all(verdict == verdicts[0] for verdict in verdicts)
    return verdicts[0]


def stores_of(store):
    return lambda _: store


@pytest.mark.parametrize("num", [1, 2, 3, 5, 8])
def test_healthy_nodes_pass_in_one_round(num):
    nodes = [f"n{i}" for i in range(num)]
    verdict = verdict_of_all(play(stores_of(HashStore()), nodes))
    assert verdict.is_good
    assert verdict.num_rounds == 1
    assert list(verdict.opinions) == nodes


def test_nodes_that_meet_in_a_file_agree(tmp_path):
    def stores(_):
        return FileStore(str(tmp_path / "store"), 4)

    verdict = verdict_of_all(play(stores, "abcd", {"c": "network"}))
    assert verdict.faulty == ("c",)
    assert verdict.num_rounds == 2


def test_nodes_that_meet_at_the_master_agree(job):
    master = job()
    with MasterClient(master.address, master.token) as client:
        store = MasterStore(client)
        stores = stores_of(PrefixStore("check", store))
        verdict = verdict_of_all(play(stores, "abcd", {"b": "network"}))
    assert verdict.faulty == ("b",)


def test_nodes_that_meet_by_tcp_agree(free_port):
    def run(node):
        with tcp_rendezvous_store(
            "127.0.0.1", free_port, num_nodes=3, node=node
        ) as store:
            return play(stores_of(store), [node], wanted=3)[node]

    with ThreadPoolExecutor(3) as pool:
        outcomes = dict(zip("abc", pool.map(run, "abc"), strict=True))
    assert verdict_of_all(outcomes).is_good


@pytest.mark.slow
def test_node_that_dies_midway_costs_its_rounds_and_is_named():
    died = threading.Event()

    def die():
        died.set()
        raise KeyboardInterrupt

    store = HashStore()
    begin_s = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        config = replace(QUICK, join_s=20.0)

        def run(node):
            def measure(group, *_):
                if node == "d":
                    die()
                waits = "d" in group
                return report(
                    node, network_failure="no d" if waits else "", received="r"
                )

            return confer(store, node, list("abcd"), config, measure)

        running = {node: pool.submit(run, node) for node in "abcd"}
        with pytest.raises(KeyboardInterrupt):
            running.pop("d").result()
        verdict = verdict_of_all({n: one.result() for n, one in running.items()})
    assert died.is_set()
    assert verdict.faulty == ("d",)
    assert verdict.opinions["d"].reason == "did not answer (2 of 2 rounds)"
    # Two rounds without d, and no more than that.
    assert time.monotonic() - begin_s < 10.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hash", "file", "master"])
def test_node_that_never_comes_is_named_and_not_waited_for_again(kind, tmp_path, job):
    with contextlib.ExitStack() as stack:
        if kind == "master":
            master = job()
            client = stack.enter_context(MasterClient(master.address, master.token))
            stores = stores_of(MasterStore(client))
        elif kind == "file":
            stores = lambda _: FileStore(str(tmp_path / "store"), 3)
        else:
            stores = stores_of(HashStore())
        outcomes = play(stores, "ab", config=QUICK, wanted=["a", "b", "z"])
    verdict = verdict_of_all(outcomes)
    assert (verdict.faulty, verdict.absent) == ((), ("z",))
    assert verdict.notes[-1] == "z did not come within 0.5 s"
    assert not verdict.is_good
    assert verdict.opinions["a"].outcome == Outcome.PASSED


def test_nodes_without_names_that_never_come_are_counted():
    verdict = verdict_of_all(play(stores_of(HashStore()), "ab", config=QUICK, wanted=4))
    assert verdict.faulty == ()
    assert verdict.absent == ("(one of 4) 1", "(one of 4) 2")
    assert not verdict.is_good


def test_node_that_comes_too_late_is_told_so():
    store = HashStore()
    play(stores_of(store), "ab", config=QUICK, wanted=["a", "b", "z"])
    with pytest.raises(ProgramError, match="which is over, or z came too late"):
        play(stores_of(store), "z", config=QUICK, wanted=["a", "b", "z"])


def test_node_that_comes_while_a_check_goes_on_is_told_so():
    store = HashStore()
    play(stores_of(store), "ab", config=QUICK, wanted=["a", "b", "z"])
    store.delete_key("over/said/")
    with pytest.raises(
        DistributedError, match=r"begun without z, which came after 0\.5 s"
    ):
        play(stores_of(store), "z", config=QUICK, wanted=["a", "b", "z"])


def test_store_of_an_earlier_check_is_refused():
    store = HashStore()
    play(stores_of(store), "a")
    with pytest.raises(ProgramError, match="was used by an earlier check"):
        play(stores_of(store), "a")


def test_two_nodes_of_one_name_are_refused():
    store = HashStore()
    play(stores_of(store), "a")
    store.delete_key("over/said/")
    with pytest.raises(ProgramError, match="two nodes call themselves a, or another"):
        play(stores_of(store), "a")


def test_one_node_too_many_is_refused():
    store = HashStore()
    play(stores_of(store), "a")
    store.delete_key("over/said/")
    with pytest.raises(
        ProgramError, match="this check is of 1 nodes, and b is one more"
    ):
        play(stores_of(store), "b")


def test_nodes_that_are_checked_differently_are_refused_on_all_of_them():
    store = HashStore()

    def run(node):
        config = CONFIG if node == "a" else CheckConfig(checks=("disk",))
        with pytest.raises(ProgramError, match="checked in the same way"):
            confer(store, node, 2, config, lambda *_: report(node))
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(run, "ab"))


@pytest.mark.parametrize(
    ("node", "nodes", "says"),
    [
        ("a", 0, "nodes must be at least 1"),
        ("a", ["b"], "a one of them, got b"),
        ("a", ["a", "a"], "must be different names"),
        ("a", "a", "must be different names"),
        ("", 1, "must not be empty"),
        ("a/b", 1, "have no '/'"),
    ],
)
def test_names_that_make_no_sense_are_refused(node, nodes, says):
    with pytest.raises(ProgramError, match=says):
        confer(HashStore(), node, nodes, CONFIG, lambda *_: report(node))


def test_store_that_fails_is_an_error_that_says_so():
    class Broken(HashStore):
        def add(self, key, amount):
            raise DistNetworkError("connection reset")

    class BreaksLater(HashStore):
        def check(self, keys):
            raise DistNetworkError("connection reset")

    for store in (Broken(), BreaksLater()):
        with pytest.raises(DistributedError, match=r"has failed in the phase.*reset"):
            play(stores_of(store), "a")


def test_phase_is_closed_once_and_read_the_same_by_who_is_late():
    store = HashStore()
    first, second = RoundTable(store), RoundTable(store)
    first.say("p", "a", "x")
    said = first.close("p", "ab", until_s=time.monotonic(), has_said=True)
    assert said == {"a": "x"}
    second.say("p", "b", "y")
    assert second.close("p", "ab", until_s=time.monotonic(), has_said=True) == said


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False)), st.text())
def test_result_survives_the_wire(measures, text):
    said = NodeReport(
        "a", measures, {"disk": text}, network_failure=text, digests={"cpu": text}
    )
    found = read_result(
        write_result(said, ("a", "b")), round_number=2, node="a", group=("a", "b")
    )
    short = text[:300]
    assert found == Result(
        *(2, "a", ("a", "b"), measures, {"disk": short}, short), digests={"cpu": short}
    )


JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
)
FIELDS = st.sampled_from(["group", "measures", "failures", "digests", "received", "x"])


@pytest.mark.slow
@settings(max_examples=50)
@given(st.text() | JUNK.map(json.dumps) | st.dictionaries(FIELDS, JUNK).map(json.dumps))
def test_anything_else_on_the_wire_is_a_failure_of_who_said_it(text):
    found = read_result(text, round_number=0, node="a", group=("a",))
    assert found.node == "a"
    assert found.group == ("a",)
    assert all(isinstance(rate, float) for rate in found.measures.values())
    assert all(isinstance(why, str) for why in found.failures.values())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "cannot be read: Expecting value"),
        ("[]", "it must be a table, got []"),
        ('{"group": ["a", "c"]}', "it is of the group ['a', 'c'], asked was a, b"),
        ('{"measures": {"x": true}}', "x must be a number, got True"),
        ('{"measures": {"x": 1' + "0" * 400 + "}}", "too large to convert to float"),
        ('{"received": 3}', "received must be a text of at most 300, got 3"),
        ("[" * 100_000, "characters, of at most 65536"),
        ("[" * 60_000, "recursion"),
    ],
)
def test_result_that_cannot_be_read_says_why(text, says):
    found = read_result(text, round_number=0, node="a", group=("a", "b"))
    assert says in found.failures["result"]


def test_node_that_says_what_cannot_be_read_is_named_by_all():
    class Garbled(HashStore):
        def set(self, key, value):
            is_result = key.startswith("round") and key.endswith("/c")
            super().set(key, "no json" if is_result else value)

    verdict = verdict_of_all(play(stores_of(Garbled()), "abcd"))
    assert verdict.faulty == ("c",)
    assert "cannot be read" in verdict.opinions["c"].reason


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
