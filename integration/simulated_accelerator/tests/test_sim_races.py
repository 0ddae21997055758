"""Races that a GPU has, each with its synchronisation and without it.

The shapes run once before the delays are armed: the first call of an op with new shapes
waits for the device.
"""

import math

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator

SLOW_US = 20_000
SIZE = 1000


@pytest.fixture
def streams():
    return torch.sim.current_stream(), torch.sim.Stream()


def warm_up():
    """Runs the ops of the tests once."""
    for function in (torch.ones, torch.zeros):
        tensor = function(SIZE, device="sim")
        tensor.add_(1)
        (tensor * 2).sum().item()
    torch.full((SIZE,), 7.0, device="sim")
    torch.sim.synchronize()


@pytest.mark.parametrize("waits", [True, False])
def test_side_stream_that_reads_a_result_needs_wait_stream(streams, waits):
    main, side = streams
    warm_up()
    a = torch.zeros(SIZE, device="sim")
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        a.add_(1)
        if waits:
            side.wait_stream(main)
        with torch.sim.stream(side):
            b = a * 2
        torch.sim.synchronize()
    assert (b.sum().item() == 2 * SIZE) is waits


@pytest.mark.parametrize("waits", [True, False])
def test_side_stream_that_reads_a_new_tensor_needs_its_event(streams, waits):
    main, side = streams
    warm_up()
    a = torch.ones(SIZE, device="sim")
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        b = a * 2
        event = main.record_event()
        if waits:
            side.wait_event(event)
        with torch.sim.stream(side):
            c = b * 2
        torch.sim.synchronize()
    total = c.sum().item()
    # What nothing has written yet is NaN.
    assert total == 4 * SIZE if waits else math.isnan(total)


@pytest.mark.parametrize("records", [True, False])
def test_tensor_freed_under_a_side_stream_needs_record_stream(streams, records):
    main, side = streams
    warm_up()
    a = torch.ones(SIZE, device="sim")
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        side.wait_stream(main)
        with torch.sim.stream(side):
            a * 1
            out = a * 2
        if records:
            a.record_stream(side)
        del a
        torch.full((SIZE,), 7.0, device="sim")
        torch.sim.synchronize()
    assert (out.sum().item() == 2 * SIZE) is records


@pytest.mark.parametrize("waits", [True, False])
def test_host_that_reads_a_pinned_copy_needs_synchronize(waits):
    source = torch.ones(SIZE, device="sim")
    target = torch.zeros(SIZE).pin_memory()
    torch.sim.synchronize()
    with control.delays(copy_us=SLOW_US):
        target.copy_(source, non_blocking=True)
        if waits:
            torch.sim.synchronize()
        total = target.sum().item()
        torch.sim.synchronize()
    assert (total == SIZE) is waits


@pytest.mark.parametrize("waits", [True, False])
def test_host_that_changes_a_pinned_source_needs_an_event(waits):
    source = torch.ones(SIZE).pin_memory()
    target = torch.zeros(SIZE, device="sim")
    torch.sim.synchronize()
    with control.delays(copy_us=SLOW_US):
        target.copy_(source, non_blocking=True)
        event = torch.sim.Event().record()
        if waits:
            event.synchronize()
        source.fill_(9)
        torch.sim.synchronize()
    assert (target.sum().item() == SIZE) is waits


@pytest.mark.parametrize("waits", [True, False])
def test_main_stream_that_overwrites_what_is_copied_needs_an_event(streams, waits):
    main, side = streams
    warm_up()
    source = torch.ones(SIZE, device="sim")
    target = torch.zeros(SIZE).pin_memory()
    torch.sim.synchronize()
    side.wait_stream(main)
    with control.delays(copy_us=SLOW_US):
        with torch.sim.stream(side):
            target.copy_(source, non_blocking=True)
            copied = side.record_event()
        if waits:
            main.wait_event(copied)
        source.add_(1)
        torch.sim.synchronize()
    assert (target.sum().item() == SIZE) is waits


@pytest.mark.parametrize("waits", [True, False])
def test_blocking_copy_waits_for_its_own_stream_alone(streams, waits):
    main, side = streams
    warm_up()
    a = torch.ones(SIZE, device="sim")
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        with torch.sim.stream(side):
            b = a * 2
        if waits:
            main.wait_stream(side)
        total = b.cpu().sum().item()
        torch.sim.synchronize()
    assert (total == 2 * SIZE) is waits


def test_pinned_memory_is_not_used_again_before_its_copy_ended():
    totals = []
    for waits in (True, False):
        target = torch.zeros(SIZE, device="sim")
        torch.sim.synchronize()
        with control.pinned_reuse_waits(waits), control.delays(copy_us=SLOW_US):
            source = torch.ones(SIZE).pin_memory()
            target.copy_(source, non_blocking=True)
            del source
            torch.full((SIZE,), 9.0).pin_memory()
            torch.sim.synchronize()
        totals.append(target.sum().item())
    assert totals[0] == SIZE
    assert totals[1] != SIZE
