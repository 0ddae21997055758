"""The contract of an accelerator: what its facts promise, its devices do."""

from __future__ import annotations

import mmap

import torch

from drivetrain_core import DeviceError
from drivetrain_core.accelerators import Accelerator, AcceleratorFacts
from drivetrain_testing._clauses import must_raise, require

_ROWS = 64
_BIG = 1 << 20


def check_accelerator(accelerator: Accelerator, *, min_devices: int = 1) -> None:
    """Checks a kind of device, and each of its devices that is here.

    It cannot see whether importing the accelerator's file has started a device: run it
    in a process that has done nothing else.

    Args:
        accelerator: It, as `accelerator_of` returns it. Devices are used.
        min_devices: How many must be here: without one hardly anything is checked.

    Raises:
        AssertionError: A clause of the contract is broken.
        Exception: What a method raises that should not.

    Example:
        >>> from drivetrain_core.accelerators import accelerator_of
        >>> check_accelerator(accelerator_of("cpu"))
    """
    require(isinstance(accelerator, Accelerator), "it has all methods of Accelerator")
    before = accelerator.is_initialized()
    count = accelerator.device_count()
    require(count >= min_devices, f"of {min_devices} devices, {count} are found")
    require(
        accelerator.is_initialized() == before, "to count devices starts none of them"
    )
    for index in (-1, count):
        with must_raise(DeviceError, f"there is no device {index}, and no facts of it"):
            accelerator.facts(index)
    version = accelerator.version()
    require(isinstance(version, str), "versions are text")
    require(version == accelerator.version(), "the version stays what it is")
    require(isinstance(accelerator.driver(), str), "versions are text")
    _check_errors(accelerator)
    for index in range(count):
        device = torch.device(accelerator.type, index)
        facts = accelerator.facts(index)
        _check_facts(accelerator, facts)
        _check_formats(device, facts)
        _check_memory(accelerator, device, facts)
        _check_host_memory(accelerator, device, facts)
        if facts.streams:
            _check_streams(accelerator, device, facts)
        for peer in range(count):
            accelerator.can_access_peer(index, peer)
    if count:
        require(accelerator.is_initialized(), "a device that was used is in use")
        _check_random_states(accelerator, count)
        require(not accelerator.is_capturing(), "without a graph nothing is captured")


def _check_errors(accelerator: Accelerator) -> None:
    for error, is_one in (
        (torch.OutOfMemoryError("no room"), True),
        (RuntimeError("the device is out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ):
        found = accelerator.is_out_of_memory(error)
        require(found == is_one, f"whether memory is out is seen in {error!r}")


def _check_facts(accelerator: Accelerator, facts: AcceleratorFacts) -> None:
    require(isinstance(facts, AcceleratorFacts), "facts are AcceleratorFacts")
    require(facts.type == accelerator.type, "the facts are of the accelerator's type")
    require(facts.name, "a device has a name")
    require(facts.memory_bytes > 0, "a device has memory")
    hash(facts)
    known = torch.compiler.list_backends(exclude_tags=())
    require(facts.compiler in known, "the compiler is a backend of torch.compile")
    if facts.collectives is not None:
        require(
            torch.distributed.is_backend_available(facts.collectives),
            "the collectives are a backend that torch.distributed has",
        )


def _check_formats(device: torch.device, facts: AcceleratorFacts) -> None:
    require("float32" in facts.dtypes, "every device computes in float32")
    formats = [getattr(torch, name, None) for name in facts.dtypes]
    floats = [isinstance(f, torch.dtype) and f.is_floating_point for f in formats]
    require(all(floats), "dtypes are names of torch's floating-point formats")
    for name in facts.dtypes:
        ones = torch.ones(_ROWS, _ROWS, dtype=getattr(torch, name), device=device)
        product = (ones @ ones).float().cpu()
        require((product == _ROWS).all(), f"a product in {name} is right")


def _check_memory(
    accelerator: Accelerator, device: torch.device, facts: AcceleratorFacts
) -> None:
    index = device.index
    accelerator.synchronize(index)
    accelerator.synchronize()
    memory = accelerator.memory(index)
    if memory is not None:
        free, total = memory
        require(0 <= free <= total, "free memory is a part of all memory")
        require(facts.memory_bytes <= 2 * total, "the facts tell the memory there is")
        if device.type != "cpu":
            _check_limit(accelerator, device, total)
    accelerator.reset_peak_memory(index)
    low = accelerator.peak_memory(index)
    block = torch.ones(_BIG, device=device)
    accelerator.synchronize(index)
    high = accelerator.peak_memory(index)
    require((low is None) == (high is None), "a peak is always known, or never")
    if low is not None and high is not None:
        require(high >= low, "a peak only rises")
        if device.type != "cpu":
            require(high >= block.nbytes, "a peak holds what is in use")
    del block


def _check_limit(accelerator: Accelerator, device: torch.device, total: int) -> None:
    error = None
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    except Exception as raised:  # noqa: BLE001 - whatever a vendor raises
        error = raised
    known = error is not None and accelerator.is_out_of_memory(error)
    require(known, "that memory is out is an error, and recognized")
    ones = torch.ones(_ROWS, device=device)
    require(float(ones.sum()) == _ROWS, "a device goes on after its memory was out")


def _check_host_memory(
    accelerator: Accelerator, device: torch.device, facts: AcceleratorFacts
) -> None:
    if facts.pinned_memory:
        host = torch.arange(_BIG).pin_memory()
        there = host.to(device, non_blocking=True)
        accelerator.synchronize(device.index)
        require(torch.equal(there.cpu(), torch.arange(_BIG)), "a copy arrives whole")
    with mmap.mmap(-1, _BIG) as memory:
        raw = torch.frombuffer(memory, dtype=torch.uint8)
        refused = accelerator.register_host_memory(raw.data_ptr(), _BIG)
        ones = torch.ones(_BIG, dtype=torch.uint8, device=device)
        raw.copy_(ones, non_blocking=True)
        accelerator.synchronize(device.index)
        require((raw == 1).all(), "a copy into registered memory arrives whole")
        if not refused:
            accelerator.unregister_host_memory(raw.data_ptr())
        del raw, ones


def _check_streams(
    accelerator: Accelerator, device: torch.device, facts: AcceleratorFacts
) -> None:
    side = torch.Stream(device)
    main = torch.accelerator.current_stream(device)
    source = torch.zeros(_BIG, device=device)
    begun, ended = (
        torch.Event(device, enable_timing=facts.event_timing) for _ in range(2)
    )
    require(side != main, "a new stream is another than the current one")
    require(begun.query(), "an event that was never recorded is done")
    begun.record(main)
    for _ in range(8):
        source.add_(1.0)
    side.wait_stream(main)
    with side:
        doubled = source * 2.0
        ended.record(side)
    main.wait_event(ended)
    tripled = doubled + source
    for _ in range(64):
        source.add_(1.0)
    last = main.record_event()
    accelerator.synchronize(device.index)
    require(last.query(), "a device that was waited for has nothing left to do")
    ended.synchronize()
    require(ended.query(), "an event that was waited for is done")
    require(
        (tripled == 24.0).all(),
        "what waits for an event sees what was queued before it",
    )
    if facts.event_timing:
        accelerator.synchronize(device.index)
        require(begun.elapsed_time(ended) >= 0.0, "time passes between two events")


def _check_random_states(accelerator: Accelerator, count: int) -> None:
    devices = [torch.device(accelerator.type, index) for index in range(count)]

    def draw() -> list[torch.Tensor]:
        return [torch.rand(_ROWS, device=device).cpu() for device in devices]

    states = accelerator.rng_states()
    require(len(states) == count, "each device has a state of its generator")
    first, second = draw(), draw()
    accelerator.set_rng_states(states)
    again = draw()
    require(
        all(map(torch.equal, first, again)),
        "a state that is set brings its numbers back",
    )
    require(
        not any(map(torch.equal, first, second)), "numbers that follow are other ones"
    )
    torch.manual_seed(7)
    seeded = draw()
    torch.manual_seed(7)
    require(all(map(torch.equal, seeded, draw())), "a seed brings its numbers back")
    accelerator.set_rng_states(states)
