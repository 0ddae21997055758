"""Copies between host and device, and between devices."""

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator

SLOW_US = 20_000
SIZE = 1000


def test_pageable_source_is_staged_before_the_call_returns():
    source = torch.ones(SIZE)
    target = torch.zeros(SIZE, device="sim")
    torch.sim.synchronize()
    with control.delays(copy_us=SLOW_US):
        target.copy_(source, non_blocking=True)
        source.fill_(9)
        torch.sim.synchronize()
    assert target.sum().item() == SIZE


def test_pageable_target_is_waited_for():
    source = torch.ones(SIZE, device="sim")
    target = torch.zeros(SIZE)
    with control.delays(copy_us=SLOW_US):
        target.copy_(source, non_blocking=True)
        assert target.sum().item() == SIZE


def test_blocking_copies_wait_for_the_stream():
    source = torch.ones(SIZE).pin_memory()
    with control.delays(copy_us=SLOW_US):
        target = source.to("sim")
        assert torch.sim.current_stream().query()
        source.zero_()
        torch.sim.synchronize()
    assert target.sum().item() == SIZE


def test_pinned_copies_are_queued():
    source = torch.ones(SIZE).pin_memory()
    with control.delays(copy_us=SLOW_US):
        target = source.to("sim", non_blocking=True)
        assert not torch.sim.current_stream().query()
        back = torch.empty(SIZE).pin_memory()
        back.copy_(target, non_blocking=True)
        assert back.isnan().all()
        torch.sim.synchronize()
    assert back.sum().item() == SIZE


def test_copies_convert_types_and_shapes():
    source = torch.arange(6).view(2, 3)
    target = torch.zeros(3, 2, device="sim", dtype=torch.float64)
    target.t().copy_(source)
    assert torch.equal(target.cpu(), source.t().double())
    row = torch.zeros(4, 3, device="sim")
    row.copy_(torch.tensor([1, 2, 3]))
    assert torch.equal(row.cpu(), torch.tensor([1.0, 2, 3]).expand(4, 3))
    complex_ones = torch.complex(torch.ones(2), torch.ones(2)).to("sim").conj()
    assert torch.equal(complex_ones.cpu(), torch.tensor([1 - 1j, 1 - 1j]))


def test_copies_of_nothing_and_of_one():
    assert torch.empty(0, 3, device="sim").cpu().shape == (0, 3)
    assert torch.tensor(4.0).to("sim").item() == 4
    assert torch.tensor([True, False]).to("sim").cpu().tolist() == [True, False]


def test_copy_between_devices_is_ordered_on_both():
    a = torch.ones(SIZE, device="sim:0")
    a.add_(1)
    torch.sim.synchronize(0)
    b = torch.zeros(SIZE, device="sim:1")
    b.add_(1)
    with control.delays(op_us=SLOW_US, copy_us=SLOW_US):
        a.add_(1)
        b.copy_(a)
        a.zero_()
        b.add_(1)
        torch.sim.synchronize(1)
    assert b.sum().item() == 4 * SIZE
    assert a.to("sim:1").sum().item() == 0


def test_copies_and_ops_overlap():
    side = torch.sim.Stream()
    target = torch.empty(SIZE).pin_memory()
    x, y = torch.ones(SIZE, device="sim"), torch.ones(SIZE, device="sim")
    y.add_(1)
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US, copy_us=20 * SLOW_US):
        with torch.sim.stream(side):
            target.copy_(x, non_blocking=True)
            copied = side.record_event()
        y.add_(1)
        torch.sim.current_stream().synchronize()
        assert not copied.query()
        torch.sim.synchronize()
    assert target.sum().item() == SIZE
