"""Errors that come late, and devices that are lost."""

import threading
import time
from collections import deque

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")
testing = pytest.importorskip("drivetrain_simulated_accelerator.testing")

pytestmark = pytest.mark.simulated_accelerator

SLOW_US = 20_000


def fail_later():
    """Queues an op that fails on its stream."""
    values = torch.arange(4.0, device="sim")
    values.index_select(0, torch.tensor([0, 1], device="sim"))
    torch.sim.synchronize()
    values.index_select(0, torch.tensor([0, 99], device="sim"))


CALLS = {
    "synchronize": torch.sim.synchronize if hasattr(torch, "sim") else None,
    "op": lambda: torch.ones(2, device="sim"),
    "allocation": lambda: torch.empty(2, device="sim"),
    "event": lambda: torch.sim.Event().record(),
    "stream": lambda: torch.sim.current_stream().synchronize(),
}


def test_error_of_an_op_comes_late_and_stays():
    fail_later()
    said = "asynchronous error in aten::index_select: index out of range"
    with pytest.raises(torch.AcceleratorError, match=said):
        torch.sim.synchronize()
    for call in CALLS.values():
        with pytest.raises(torch.AcceleratorError, match=said):
            call()


def test_error_is_raised_by_what_reads_a_value():
    one = torch.ones(1, device="sim")
    fail_later()
    with pytest.raises(torch.AcceleratorError, match="aten::index_select"):
        one.item()


def test_error_of_the_first_call_comes_at_once():
    values = torch.arange(5.0, device="sim")
    with pytest.raises(IndexError):
        values.index_select(0, torch.tensor([[[0]]], device="sim"))
    torch.sim.synchronize()


def test_wait_for_an_event_of_a_failed_stream_ends():
    fail_later()
    with pytest.raises(torch.AcceleratorError):
        torch.sim.Event().record().synchronize()


def test_wait_of_another_stream_for_a_failed_one_ends():
    side = torch.sim.Stream()
    tensor = torch.ones(4, device="sim")
    tensor.add_(1)
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        tensor.add_(1)
        event = torch.sim.Event().record()
        side.wait_event(event)
        control.lose(0)
        with pytest.raises(torch.AcceleratorError):
            side.synchronize()


def test_lost_device_raises_and_tensors_are_freed_silently():
    tensor = torch.ones(4, device="sim")
    torch.sim.synchronize()
    control.lose(0)
    assert control.is_lost(0)
    for call in (*CALLS.values(), tensor.sum, tensor.cpu, tensor.exp_):
        with pytest.raises(torch.AcceleratorError, match="sim:0 is lost"):
            call()
    del tensor


def test_other_device_works_when_one_is_lost():
    control.lose(0)
    assert torch.ones(4, device="sim:1").sum().item() == 4


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 0.8])
def test_device_that_is_lost_in_a_step_ends_it_and_trains_again(fraction):
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)]).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device="sim")

    def step():
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.sim.synchronize()

    for _ in range(2):
        step()
    with control.delays(op_us=1000):
        begin = time.monotonic()
        step()
        taken_s = time.monotonic() - begin
        timer = threading.Timer(fraction * taken_s, control.lose, (0,))
        timer.start()
        # It raises, whatever it is doing then.
        with pytest.raises(torch.AcceleratorError, match="sim:0 is lost"):
            deque(iter(step, "never"), maxlen=0)
        timer.join()
    control.restore(0)
    optimizer.zero_grad()
    step()


def test_restored_device_works_again():
    control.lose(0)
    control.restore(0)
    assert torch.ones(4, device="sim").sum().item() == 4


def test_error_has_no_trace_of_cpp_frames():
    fail_later()
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.sim.synchronize()
    assert "frame #" not in str(caught.value).splitlines()[0]


def end_with_a_lost_device():
    tensor = torch.ones(4, device="sim")
    tensor.add_(1)
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        tensor.add_(1)
        control.lose(0)
    globals()["kept"] = tensor


def test_process_with_a_lost_device_ends_well():
    ended = testing.run_child(end_with_a_lost_device)
    assert (ended.exit_code, ended.error) == (0, "")


def end_with_work_queued():
    tensor = torch.ones(4, device="sim")
    tensor.add_(1)
    torch.sim.synchronize()
    # For longer than the test waits.
    control._native().set_delays(100_000, 0, 0, 0)
    for _ in range(10_000):
        tensor.add_(1)
    globals()["kept"] = tensor


def test_process_with_queued_work_ends_well():
    ended = testing.run_child(end_with_work_queued)
    assert (ended.exit_code, ended.error) == (0, "")
