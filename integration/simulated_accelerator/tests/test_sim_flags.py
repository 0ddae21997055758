"""Devices that lack something: each is refused by name, or done without."""

import pytest

torch = pytest.importorskip("torch")
testing = pytest.importorskip("drivetrain_simulated_accelerator.testing")
Settings = pytest.importorskip("drivetrain_simulated_accelerator").Settings

pytestmark = pytest.mark.simulated_accelerator


def raised(function, kind=RuntimeError):
    """Returns what a function raises, as text."""
    try:
        function()
    except kind as error:
        return str(error)
    return "nothing"


def without_bf16():
    x = torch.ones(2, 2, device="sim")
    y = torch.empty(2, 2, device="sim", dtype=torch.bfloat16)
    return {
        "supported": torch.sim.is_bf16_supported(),
        "amp": torch.bfloat16 in torch.sim.get_amp_supported_dtype(),
        "capability": torch.bfloat16
        in torch.accelerator.get_device_capability()["supported_dtypes"],
        "op": raised(lambda: y + y, NotImplementedError),
        "cast": raised(x.bfloat16, NotImplementedError),
        "copy": raised(lambda: torch.ones(2).bfloat16().to("sim")),
        "half": (x.half() @ x.half()).sum().item(),
    }


def test_device_without_bf16():
    ended = testing.run_child(without_bf16, settings=Settings(bf16=False))
    assert ended.error == ""
    found = ended.result
    assert not any((found["supported"], found["amp"], found["capability"]))
    assert found["half"] == 8
    assert "aten::add" in found["op"]
    assert "setting bf16 is off" in found["op"]
    for key in ("cast", "copy"):
        assert "setting bf16 is off" in found[key]


def without_streams():
    main, side = torch.sim.current_stream(), torch.sim.Stream()
    with torch.sim.stream(side):
        x = torch.ones(4, device="sim") * 2
    side.wait_stream(main)
    return side == main, torch.Stream("sim") == main, x.sum().item()


def test_device_without_streams_has_the_default_one():
    ended = testing.run_child(without_streams, settings=Settings(streams=False))
    assert (ended.result, ended.error) == ((True, True, 8.0), "")


def without_event_timing():
    torch.sim.Event().record().synchronize()
    return (
        raised(lambda: torch.sim.Event(enable_timing=True)),
        raised(lambda: torch.Event("sim", enable_timing=True).record()),
    )


def test_device_without_event_timing_refuses_it():
    ended = testing.run_child(
        without_event_timing, settings=Settings(event_timing=False)
    )
    assert ended.error == ""
    assert all("setting event_timing is off" in said for said in ended.result)


def without_pinned_memory():
    tensor = torch.ones(4)
    return (
        raised(tensor.pin_memory),
        tensor.is_pinned(),
        tensor.to("sim", non_blocking=True).sum().item(),
    )


def test_device_without_pinned_memory_refuses_it():
    ended = testing.run_child(
        without_pinned_memory, settings=Settings(pinned_memory=False)
    )
    assert ended.error == ""
    said, pinned, total = ended.result
    assert "has no pinned memory" in said
    assert (pinned, total) == (False, 4)


def without_graphs():
    said = [raised(torch.sim.Graph)]
    if hasattr(torch.accelerator, "Graph"):
        said.append(raised(torch.accelerator.Graph))
    return said


def test_device_without_graphs_refuses_them():
    ended = testing.run_child(without_graphs, settings=Settings(graphs=False))
    assert ended.error == ""
    assert all("setting graphs is off" in said for said in ended.result)


def with_one_small_device():
    room = torch.empty(1 << 20, dtype=torch.uint8, device="sim")
    more = raised(lambda: torch.empty(1, device="sim"), torch.OutOfMemoryError)
    return torch.sim.device_count(), room.nbytes, more, torch.sim.mem_get_info()


def test_one_device_of_little_memory():
    settings = Settings(devices=1, memory_bytes=1 << 20)
    ended = testing.run_child(with_one_small_device, settings=settings)
    assert ended.error == ""
    count, num_bytes, said, free_and_total = ended.result
    assert (count, num_bytes) == (1, 1 << 20)
    assert "sim out of memory" in said
    assert free_and_total == (0, 1 << 20)


def without_address_space():
    return torch.sim.device_count(), torch.sim.is_available()


def test_memory_that_cannot_be_mapped_leaves_no_device():
    settings = Settings(devices=16, memory_bytes=1 << 42)
    ended = testing.run_child(without_address_space, settings=settings)
    assert (ended.result, ended.error) == ((0, False), "")


def unpoisoned():
    return torch.empty(8, device="sim").tolist()


def test_memory_without_poison_is_what_it_was():
    ended = testing.run_child(unpoisoned, settings=Settings(poison=False))
    assert (ended.result, ended.error) == ([0.0] * 8, "")


def delayed():
    from drivetrain_simulated_accelerator import _native

    return _native.get_delays()


def test_delays_of_the_settings_are_armed():
    settings = Settings(
        op_delay_us=1, copy_delay_us=2, collective_delay_us=3, collective_us_per_mib=4
    )
    ended = testing.run_child(delayed, settings=settings)
    assert (ended.result, ended.error) == ((1, 2, 3, 4), "")
