"""The model ranks plans, and trials decide between them."""

import random
from functools import partial

import pytest

from drivetrain_comm._settings import Settings, settings_from
from drivetrain_comm.ddp._predict import Bucket, merged, span_s
from drivetrain_comm.ddp._reduction_plan import (
    ReductionPlan,
    Trial,
    candidates,
    with_stock,
)
from drivetrain_comm.selection._choice import Choice
from drivetrain_comm.selection._cost import Network, cost_of
from drivetrain_comm.selection._select import (
    cheapest,
    load_of_algorithm,
    load_of_stock,
    useful_streams,
)
from drivetrain_core import DistributedError

TWO_BY_FOUR = [[0, 1, 2, 3], [4, 5, 6, 7]]
EIGHT = [[rank] for rank in range(8)]
MB = 1 << 20


def network(**changes):
    usual = {
        "delay_s": 1e-4,
        "flow_bytes_per_s": 50e6,
        "port_bytes_per_s": 50e6,
        "local_bytes_per_s": 5e9,
    }
    return Network(**{**usual, **changes})


def loads(hosts):
    names = ["ring", "direct", "halving"]
    if len(hosts) < 8:
        names += ["hierarchical-ring", "hierarchical-direct"]
    return {name: load_of_algorithm(name, hosts) for name in names}


def ready(num=12, each_s=0.05, size=4 * MB):
    return [Bucket(ready_s=i * each_s, size_bytes=size) for i in range(num)]


def test_candidates_of_two_hosts_are_hierarchical():
    found = candidates(ready(), loads(TWO_BY_FOUR), network(), Settings())
    assert all(t.choice.algorithm.startswith("hierarchical") for t, _ in found)
    assert [s for _, s in found] == sorted(s for _, s in found)


def test_candidates_use_more_streams_where_a_flow_is_capped():
    capped = network(flow_bytes_per_s=12.5e6, port_bytes_per_s=50e6)
    found = candidates(ready(), loads(EIGHT), capped, Settings())
    # To several peers at once go several flows as it is.
    streams = {t.choice.algorithm: t.choice.num_streams for t, _ in found}
    assert streams["ring"] == 4
    assert streams["direct"] == 1


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (Settings(algorithm="ring"), lambda t: t.choice.algorithm == "ring"),
        (Settings(streams=2), lambda t: t.choice.num_streams == 2),
        (Settings(bucket_mb=3), lambda t: t.bucket_bytes == 3 * MB),
    ],
)
def test_candidates_keep_to_what_is_fixed(settings, wanted):
    found = candidates(ready(), loads(TWO_BY_FOUR), network(), settings)
    assert found
    assert all(wanted(plan) for plan, _ in found)


def stock_of(hosts, settings=None, names=None):
    """The plans of torch's own backend among the candidates."""
    settings, measured = settings or Settings(), network(delay_s=1e-5)
    names = {n: load for n, load in loads(hosts).items() if not names or n in names}
    found = candidates(ready(), names, measured, settings)
    stock = load_of_stock(hosts)
    both = with_stock(found, ready(), stock, measured, settings)
    assert [s for _, s in both] == sorted(s for _, s in both)
    assert {t for t, _ in found} <= {t for t, _ in both}
    return [t for t, _ in both if t.choice.algorithm == "stock"]


def test_stock_has_a_trial_where_it_may_win_and_none_where_it_cannot():
    (one,) = stock_of([list(range(8))])
    assert one.bucket_bytes == 25 * MB
    assert stock_of(EIGHT, names=["ring"])
    shuffled = [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert not stock_of(shuffled)


@pytest.mark.parametrize(
    "fixed",
    [{"algorithm": "ring"}, {"streams": 1}, {"compression": "bf16"}],
)
def test_stock_has_no_trial_where_it_cannot_do_what_is_fixed(fixed):
    assert not stock_of([list(range(8))], Settings(**fixed))


def test_stock_keeps_to_a_size_of_buckets_that_is_fixed():
    (one,) = stock_of([list(range(8))], Settings(bucket_mb=2))
    assert one.bucket_bytes == 2 * MB


def test_cheapest_takes_few_hops_for_short_vectors_and_few_bytes_for_long_ones():
    slow = network(delay_s=5e-3)
    assert cheapest(loads(EIGHT), slow, 1 << 12).algorithm == "direct"
    long = cost_of(loads(EIGHT)["ring"], slow, 1, 256 * MB)
    assert long.alone_s < 1.1 * 1.75 * 256 * MB / 50e6


@pytest.mark.parametrize(
    ("flow", "port", "streams"),
    [(50e6, 50e6, [1]), (50e6, 52e6, [1]), (10e6, 80e6, [1, 2, 4, 8])],
)
def test_useful_streams_are_those_that_could_fill_the_port(flow, port, streams):
    found = useful_streams(network(flow_bytes_per_s=flow, port_bytes_per_s=port))
    assert found == streams


def test_merged_keeps_all_bytes():
    parts = merged(ready(num=7, size=3), lambda _: 7)
    assert sum(part.size_bytes for part in parts) == 21
    assert [part.size_bytes for part in parts] == [9, 9, 3]
    assert merged([], lambda _: 7) == []


def test_span_of_one_large_bucket_has_no_overlap():
    load = load_of_algorithm("hierarchical-direct", TWO_BY_FOUR)
    cost = partial(cost_of, load, network(), 1)
    small = span_s(merged(ready(), lambda _: 4 * MB), cost)
    large = span_s(merged(ready(), lambda _: 1 << 40), cost)
    assert large > small + 0.3


def plans(num):
    return [
        ReductionPlan(bucket_bytes=MB << i, choice=Choice(algorithm="ring"))
        for i in range(num)
    ]


def test_variable_that_nobody_reads_is_told(caplog):
    given = {"DRIVETRAIN_COMM_STREEMS": "4", "DRIVETRAIN_COMM_HOST": "a", "HOME": "/"}
    assert settings_from(given) == Settings()
    (said,) = caplog.messages
    assert said == (
        "DRIVETRAIN_COMM_STREEMS is no variable of drivetrain-comm: "
        "DRIVETRAIN_COMM_STREAMS is"
    )


@pytest.mark.parametrize("num", [1, 2, 3, 6])
@pytest.mark.parametrize("seed", range(10))
def test_trial_finds_the_fastest_in_time(num, seed):
    noise = random.Random(seed)
    options = plans(num)
    truth = {t: 1.0 + 0.06 * i for i, t in enumerate(noise.sample(options, num))}
    trial = Trial(plans=options)
    num_steps = 0
    while trial.winner is None:
        steps = trial.next_steps()
        num_steps += len(steps)
        trial.record([truth[t] * noise.uniform(1.0, 1.04) for t in steps])
    assert truth[trial.winner] <= 1.06
    assert num_steps <= 44


def test_trial_drops_what_is_hopeless_at_once():
    fast, slow = plans(2)
    trial = Trial(plans=[slow, fast])
    trial.record([2.0 if t == slow else 1.0 for t in trial.next_steps()])
    assert trial.winner == fast


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"algorithm": "rng"}, "algorithm"),
        ({"streams": 0}, "streams"),
        ({"streams": 17}, "streams"),
        ({"bucket_mb": -1.0}, "bucket_mb"),
        ({"bucket_mb": float("nan")}, "bucket_mb"),
        ({"compression": "int3"}, "compression"),
        ({"socket_buffer_kb": -5}, "socket_buffer_kb"),
        ({"speed": 9}, "speed"),
        ({"tune": "0"}, "tune must be True or False"),
        ({"cache": "/tmp/folder"}, "cache must be True or False"),
        ({"bucket_mb": "8"}, "bucket_mb must be a number, got '8'"),
        ({"streams": True}, "streams must be an integer, got True"),
        ({"powersgd_rank": "4"}, "powersgd_rank must be an integer, got '4'"),
        ({"algorithm": "stock", "streams": 2}, "algorithm must be left out where"),
        ({"algorithm": "stock", "bucket_mb": 2}, "algorithm must be left out where"),
        (
            {"algorithm": "stock", "compression": "bf16"},
            "algorithm must be left out where",
        ),
    ],
)
def test_settings_refuse_what_cannot_be(given, says):
    with pytest.raises(DistributedError, match=says):
        settings_from({}, **given)


@pytest.mark.parametrize(
    ("name", "text"),
    [("STREAMS", "many"), ("TUNE", "yes"), ("ALGORITHM", "fast"), ("BUCKET_MB", "")],
)
def test_settings_of_the_environment_are_checked(name, text):
    environment = {f"DRIVETRAIN_COMM_{name}": text}
    if not text:
        assert settings_from(environment) == Settings()
        return
    with pytest.raises(DistributedError, match=f"DRIVETRAIN_COMM_{name}"):
        settings_from(environment)


def test_settings_that_are_given_come_before_the_environment():
    assert settings_from({"DRIVETRAIN_COMM_STREAMS": "4"}, streams=2).streams == 2
