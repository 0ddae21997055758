"""Queues, marks, rates and pauses of a few flows."""

import numpy as np
import pytest

from drivetrain_fabric.network import (
    Dcqcn,
    FabricError,
    Marking,
    Pfc,
    Scenario,
    fixed_point,
    incast,
    run_scenario,
)
from drivetrain_fabric.network._dcqcn import DcqcnSenders

LINE = 40e9


def shared_link(num_flows, starts=None):
    """Senders of 40 Gb/s on a link of 40 Gb/s."""
    names = (*(f"sender {i}" for i in range(num_flows)), "shared")
    return Scenario(
        names=names,
        bits_per_s=(LINE,) * (num_flows + 1),
        paths=tuple((i, num_flows) for i in range(num_flows)),
        buffer_bytes=4e6,
        starts=starts,
    )


def late(trace, part=0.5):
    return trace.time_s > trace.time_s[-1] * part


def test_one_flow_is_as_fast_as_its_card():
    trace = run_scenario(shared_link(1), seconds=2e-3, dcqcn=Dcqcn(), pfc=Pfc())
    assert trace.goodput_bits_per_s[late(trace)] == pytest.approx(LINE)
    assert trace.queue_bytes.max() == 0
    assert trace.notifications.sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_flows", [2, 4])
def test_dcqcn_comes_to_fair_shares_at_its_fixed_point(num_flows):
    """From unequal starts; the queue lies between Kmin and Kmax."""
    starts = (LINE, *[LINE / 8] * (num_flows - 1))
    marking = Marking()
    trace = run_scenario(
        shared_link(num_flows, starts),
        seconds=0.12,
        dcqcn=Dcqcn(),
        marking=marking,
        pfc=Pfc(),
        step_s=4e-6,
        sample_s=200e-6,
    )
    rest = fixed_point(num_flows, LINE)
    end = late(trace, 1 / 3)
    rates = trace.goodput_bits_per_s[end].mean(axis=0)
    assert rates == pytest.approx(rest.rate_bits_per_s, rel=0.1)
    first = trace.goodput_bits_per_s[0]
    assert first.max() > 1.5 * first.min()
    queue = trace.queue_bytes[end, -1].mean()
    assert marking.min_bytes < queue < marking.max_bytes
    # The fixed point is one of means; draws make the queue go around it.
    assert queue == pytest.approx(rest.queue_bytes, rel=0.5)
    assert trace.mark_probability[end, -1].mean() == pytest.approx(
        rest.probability, rel=0.5
    )
    assert trace.paused.max() == 0
    assert trace.lost_bytes == 0


def test_fixed_point_grows_with_senders_up_to_kmax():
    queues = [fixed_point(num, LINE).queue_bytes for num in (1, 2, 4, 8, 64)]
    assert queues == sorted(queues)
    assert queues[-1] == Marking().max_bytes
    # The equation itself, in packets of 1000 bytes, by hand for two senders.
    cube = 5000 * 4 / (55e-6 * 5e6**2) * (1e-4 + 2 / (55e-6 * 5e6)) ** 2
    assert fixed_point(2, LINE).probability == pytest.approx(cube ** (1 / 3))


def test_senders_follow_the_rules_of_the_paper():
    dcqcn = Dcqcn(gain=0.25)
    line = np.array([1e9])
    senders = DcqcnSenders(dcqcn, line)
    senders.notify(np.array([True]))
    # Alpha starts at one: the rate is halved, the target stays.
    assert (senders.rates[0], senders.targets[0]) == (0.5e9, 1e9)
    assert senders.alphas[0] == 1
    senders.advance(55e-6, np.zeros(1))
    assert senders.alphas[0] == 0.75
    assert senders.rates[0] == 0.75e9
    senders.notify(np.array([True]))
    assert senders.rates[0] == pytest.approx(0.75e9 * (1 - 0.375))
    assert senders.targets[0] == 0.75e9
    assert senders.alphas[0] == pytest.approx(0.75 + 0.25 * 0.25)


def test_senders_go_from_recovery_to_additive_to_hyper_increase():
    dcqcn = Dcqcn(counter_bytes=1e6)
    senders = DcqcnSenders(dcqcn, np.array([5e9]), np.array([1e9]))
    targets = []
    for _ in range(8):
        senders.advance(55e-6, np.zeros(1))
        targets.append(senders.targets[0])
    # Four turns of the timer leave the target, each further one adds R_AI.
    steps = np.diff([1e9, *targets]) * 8
    assert steps == pytest.approx([0] * 4 + [40e6] * 4)
    before = senders.targets[0]
    for _ in range(6):
        senders.advance(0, np.array([1e6]))
    # Both the timer and the counter are beyond five: hyper increase, once.
    added = (senders.targets[0] - before) * 8
    assert added == pytest.approx(5 * 40e6 + 400e6)


def test_pfc_loses_nothing_where_full_buffers_would():
    scenario = incast(8)
    open_loop = run_scenario(scenario, seconds=2e-3)
    paused = run_scenario(scenario, seconds=2e-3, pfc=Pfc())
    assert open_loop.lost_bytes > 1e6
    assert open_loop.paused.max() == 0
    assert paused.lost_bytes == 0
    assert paused.paused.max() > 0
    assert paused.queue_bytes.max() < 8 * scenario.buffer_bytes


@pytest.mark.parametrize("num_senders", [2, 5, 24])
@pytest.mark.parametrize("ratio", [1.0, 2.0])
@pytest.mark.parametrize("dcqcn", [None, Dcqcn()], ids=["open", "dcqcn"])
def test_pfc_loses_nothing_with_headroom(num_senders, ratio, dcqcn):
    scenario = incast(num_senders, uplink_ratio=ratio)
    trace = run_scenario(scenario, seconds=2e-3, dcqcn=dcqcn, pfc=Pfc())
    assert trace.lost_bytes == 0
    # Something held the senders back: notifications, or else pauses.
    acted = trace.paused if dcqcn is None else trace.notifications
    assert acted.max() > 0


def test_pfc_without_headroom_loses_what_is_under_way():
    scenario = incast(8, buffer_bytes=500e3)
    trace = run_scenario(scenario, seconds=2e-3, pfc=Pfc(delay_s=10e-6))
    assert trace.lost_bytes > 0


@pytest.mark.slow
def test_pauses_spread_to_a_victim_and_dcqcn_frees_it():
    """The victim's way is free but for what a paused sender's link holds back."""
    scenario = incast(8, uplink_ratio=2)
    ends = {}
    for name, dcqcn in (("pfc", None), ("dcqcn", Dcqcn())):
        trace = run_scenario(
            scenario, seconds=0.03, dcqcn=dcqcn, pfc=Pfc(), step_s=2e-6
        )
        end = late(trace)
        ends[name] = (
            trace.goodput_bits_per_s[end].mean(axis=0),
            dict(zip(scenario.names, trace.paused[end].mean(axis=0), strict=True)),
        )
    rates, paused = ends["pfc"]
    assert rates[:-1] == pytest.approx(LINE / 8, rel=0.05)
    # The uplink is shared fairly by what waits: the victim is as slow as the sender.
    assert rates[-1] < LINE / 4
    # Pauses went from the receiver's leaf up to the spine and down to the senders.
    for link in ("spine to receiver", "leaf 0 to spine", "sender 0", "victim"):
        assert paused[link] > 0.3, link
    assert paused["spine to other"] == 0
    rates, paused = ends["dcqcn"]
    assert rates[:-1].sum() == pytest.approx(LINE, rel=0.1)
    assert rates[-1] > 0.9 * LINE
    assert paused["victim"] == 0


def test_a_flow_is_notified_once_in_an_interval_at_most():
    """Though all packets are marked: samples are as long as the interval."""
    every = Marking(min_bytes=0, max_bytes=1, max_probability=1)
    trace = run_scenario(
        shared_link(2),
        seconds=2e-3,
        dcqcn=Dcqcn(gain=1e-9, additive_bits_per_s=LINE),
        marking=every,
        pfc=Pfc(),
    )
    assert trace.notifications.max() == 1
    assert trace.notifications.sum() > 20


def test_same_seed_gives_the_same_trace():
    runs = [
        run_scenario(incast(3), seconds=1e-3, dcqcn=Dcqcn(), pfc=Pfc(), seed=seed)
        for seed in (1, 1, 2)
    ]
    one, again, other = (run.goodput_bits_per_s for run in runs)
    assert (one == again).all()
    assert (one != other).any()


def test_bytes_are_kept():
    """What senders put in is delivered, lost, or still in some queue."""
    scenario = shared_link(3)
    trace = run_scenario(scenario, seconds=1e-3, sample_s=1e-3)
    delivered = trace.goodput_bits_per_s.sum() / 8 * 1e-3
    put_in = 3 * LINE / 8 * 1e-3
    left = put_in - delivered - trace.lost_bytes
    # Each of three ports of the switch holds a buffer at most; the link was busy.
    assert delivered == pytest.approx(LINE / 8 * 1e-3, rel=0.01)
    assert 0 <= left <= 3 * scenario.buffer_bytes


@pytest.mark.parametrize(
    "call",
    [
        lambda: Dcqcn(gain=0),
        lambda: Dcqcn(timer_s=-1),
        lambda: Marking(min_bytes=5, max_bytes=4),
        lambda: Marking(max_probability=2),
        lambda: Pfc(xon_bytes=2, xoff_bytes=1),
        lambda: incast(0),
        lambda: incast(2, bits_per_s=-1),
        lambda: fixed_point(0, LINE),
        lambda: Scenario(names=("a",), bits_per_s=(1.0,), paths=((1,),)),
        lambda: Scenario(names=("a",), bits_per_s=(1.0,), paths=((0, 0),)),
        lambda: run_scenario(incast(1), seconds=0),
    ],
    ids=range(11),
)
def test_numbers_that_make_no_sense_are_errors(call):
    with pytest.raises(FabricError, match="got"):
        call()
