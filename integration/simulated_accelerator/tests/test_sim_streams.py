"""Streams and events."""

import gc
import threading

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator

SLOW_US = 20_000


@pytest.fixture
def tensor():
    tensor = torch.ones(8, device="sim")
    tensor.add_(1)
    torch.sim.synchronize()
    return tensor


def test_ops_are_queued_and_do_not_wait(tensor):
    before = control.counters()
    with control.delays(op_us=SLOW_US):
        tensor.add_(1)
        event = torch.sim.Event().record()
        assert not event.query()
        assert not torch.sim.current_stream().query()
        event.synchronize()
    assert event.query()
    after = control.counters()
    assert after["asynchronous_ops"] == before["asynchronous_ops"] + 1
    assert after["synchronous_ops"] == before["synchronous_ops"]


def test_streams_differ_and_contexts_restore_the_current_one():
    before = torch.sim.current_stream()
    side = torch.sim.Stream()
    assert side != before
    with torch.sim.stream(side):
        assert torch.sim.current_stream() == side
        with torch.sim.stream(None):
            assert torch.sim.current_stream() == side
    assert torch.sim.current_stream() == before
    with side:
        assert torch.accelerator.current_stream() == side
    assert torch.sim.default_stream().stream_id == 0


def test_stream_context_of_another_device_restores_both():
    other = torch.sim.Stream(device=1)
    with torch.sim.stream(other):
        assert torch.sim.current_device() == 1
        assert torch.sim.current_stream() == other
    assert torch.sim.current_device() == 0
    assert torch.sim.current_stream(1).stream_id == 0


def test_more_streams_than_there_are_threads_are_shared():
    ids = [torch.sim.Stream().stream_id for _ in range(70)]
    assert set(ids) <= set(range(1, 33))


def test_event_that_was_never_recorded_is_done(tensor):
    event = torch.sim.Event()
    assert event.query()
    event.synchronize()
    torch.sim.current_stream().wait_event(event)
    torch.sim.synchronize()


def test_stream_may_wait_for_itself_and_for_another_device(tensor):
    here, there = torch.sim.current_stream(0), torch.sim.current_stream(1)
    here.wait_stream(here)
    here.wait_stream(there)
    there.wait_stream(here)
    torch.sim.synchronize(0)
    torch.sim.synchronize(1)


def test_event_orders_streams_of_two_devices():
    a = torch.zeros(8, device="sim:0")
    a.add_(1)
    torch.sim.synchronize()
    with control.delays(op_us=SLOW_US):
        a.add_(1)
        event = torch.sim.Event().record()
        event.wait(torch.sim.current_stream(1))
        torch.sim.synchronize(1)
        assert event.query()
    assert a.sum().item() == 16


def test_waiters_of_an_event_keep_the_version_of_their_time(tensor):
    side = torch.sim.Stream()
    event = torch.sim.Event().record()
    side.wait_event(event)
    with control.delays(op_us=10 * SLOW_US):
        tensor.add_(1)
        event.record()
        # The side stream waits for the first recording, which is over.
        side.synchronize()
        assert not event.query()
        torch.sim.synchronize()


def test_event_may_be_destroyed_while_it_is_queued(tensor):
    side = torch.sim.Stream()
    with control.delays(op_us=SLOW_US):
        tensor.add_(1)
        event = torch.sim.Event().record()
        side.wait_event(event)
        del event
        gc.collect()
        with torch.sim.stream(side):
            result = tensor.clone()
        torch.sim.synchronize()
    assert result.sum().item() == 24


def test_elapsed_time_needs_timing_and_both_events():
    begin = torch.sim.Event(enable_timing=True)
    end = torch.sim.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        begin.elapsed_time(end)
    begin.record()
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    plain = torch.sim.Event().record()
    plain.synchronize()
    with pytest.raises(RuntimeError, match="enable_timing"):
        begin.elapsed_time(plain)


def test_record_returns_the_event_and_record_event_makes_one():
    event = torch.sim.Event()
    assert event.record() is event
    made = torch.sim.current_stream().record_event()
    assert isinstance(made, torch.sim.Event)


def test_current_stream_is_one_of_each_thread():
    side = torch.sim.Stream()
    seen = []
    with torch.sim.stream(side):
        thread = threading.Thread(
            target=lambda: seen.append(torch.sim.current_stream().stream_id)
        )
        thread.start()
        thread.join()
    assert seen == [0]


def test_side_stream_overlaps_the_default_one(tensor):
    side = torch.sim.Stream()
    with control.delays(op_us=10 * SLOW_US):
        tensor.add_(1)
        slow = torch.sim.Event().record()
        with torch.sim.stream(side):
            fast = torch.sim.Event().record()
        fast.synchronize()
        assert not slow.query()
        torch.sim.synchronize()


def test_where_a_tensor_lies_is_known_without_a_wait():
    x = torch.zeros(8, device="sim")
    x.add_(1.0)
    torch.sim.synchronize()
    with control.delays(op_us=200_000):
        x.add_(1.0)
        event = torch.sim.Event()
        event.record()
        assert x.is_set_to(x.view_as(x))
        assert not event.query()
        event.synchronize()
