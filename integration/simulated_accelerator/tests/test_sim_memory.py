"""The allocator: statistics, limits, streams."""

import gc

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator

MIB = 1 << 20
LIMIT = 1 << 30


@pytest.fixture(autouse=True)
def empty_device():
    gc.collect()
    torch.sim.empty_cache()
    torch.sim.reset_peak_memory_stats()


def room(num_bytes, device="sim"):
    """Returns a tensor of so many bytes."""
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def test_statistics_follow_tensors():
    before = torch.sim.memory_allocated()
    tensor = room(3 * MIB)
    assert torch.sim.memory_allocated() == before + 3 * MIB
    assert torch.sim.memory_reserved() >= torch.sim.memory_allocated()
    del tensor
    assert torch.sim.memory_allocated() == before
    assert torch.sim.max_memory_allocated() >= before + 3 * MIB
    torch.sim.reset_peak_memory_stats()
    assert torch.sim.max_memory_allocated() == before


def test_small_requests_are_rounded():
    before = torch.sim.memory_stats()
    tensor = room(1)
    after = torch.sim.memory_stats()
    key = "allocated_bytes.all.current"
    assert after[key] == before[key] + 512
    key = "requested_bytes.all.current"
    assert after[key] == before[key] + 1
    del tensor


def test_empty_cache_gives_back_what_no_tensor_has():
    tensor = room(5 * MIB)
    del tensor
    free, total = torch.sim.mem_get_info()
    torch.sim.empty_cache()
    assert torch.sim.mem_get_info() == (free + 5 * MIB, total)
    assert torch.sim.memory_reserved() == torch.sim.memory_allocated()


def test_allocation_beyond_the_limit_raises_and_a_smaller_one_succeeds():
    before = torch.accelerator.memory_stats()
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 2\.00 GiB"):
        room(2 * LIMIT)
    tensor = room(LIMIT // 2)
    assert tensor.nbytes == LIMIT // 2
    after = torch.accelerator.memory_stats()
    assert after["num_ooms"] == before["num_ooms"] + 1
    assert after["num_alloc_retries"] == before["num_alloc_retries"] + 1
    assert torch.sim.max_memory_allocated() <= LIMIT


def test_cached_blocks_of_another_stream_are_taken_before_it_fails():
    side = torch.sim.Stream()
    with torch.sim.stream(side):
        tensor = room(3 * LIMIT // 4)
        del tensor
    assert room(3 * LIMIT // 4).nbytes == 3 * LIMIT // 4


def test_blocks_held_by_record_stream_are_waited_for():
    side = torch.sim.Stream()
    tensor = room(3 * LIMIT // 4)
    small = tensor[:8]
    small.add_(1)
    torch.sim.synchronize()
    with control.delays(op_us=20_000):
        with torch.sim.stream(side):
            small.add_(1)
        tensor.record_stream(side)
        del tensor, small
        assert room(3 * LIMIT // 4).nbytes == 3 * LIMIT // 4


def test_each_device_has_its_own_memory():
    tensors = [room(3 * LIMIT // 4, f"sim:{index}") for index in range(2)]
    assert [tensor.device.index for tensor in tensors] == [0, 1]


def test_out_of_memory_in_backward_leaves_the_next_step_well():
    x = torch.ones(8, device="sim", requires_grad=True)

    class Greedy(torch.autograd.Function):
        asked = 2 * LIMIT

        @staticmethod
        def forward(context, value):
            return value * 1

        @staticmethod
        def backward(context, gradient):
            room(Greedy.asked)
            return gradient

    with pytest.raises(torch.OutOfMemoryError):
        Greedy.apply(x).sum().backward()
    Greedy.asked = MIB
    Greedy.apply(x).sum().backward()
    assert x.grad.sum().item() == 8


def test_steps_leak_nothing():
    model = torch.nn.Linear(16, 16).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    seen = set()
    for step in range(60):
        x = torch.ones(4, 16).to("sim", non_blocking=True)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.sim.synchronize()
        if step > 1:
            seen.add(torch.sim.memory_allocated())
    assert len(seen) == 1


def test_storage_is_resized_and_keeps_its_bytes():
    tensor = torch.arange(8.0, device="sim")
    storage = tensor.untyped_storage()
    storage.resize_(64)
    assert torch.equal(tensor.cpu(), torch.arange(8.0))
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(32)
    tensor.fill_(3)
    assert tensor.sum().item() == 24


def test_new_memory_is_poisoned():
    assert torch.empty(16, device="sim").isnan().all().item()


def test_pinned_memory_is_counted_and_kept():
    tensor = torch.ones(1000).pin_memory()
    assert tensor.is_pinned()
    assert tensor[10:].is_pinned()
    assert not torch.ones(3).is_pinned()
    address = tensor.data_ptr()
    del tensor
    assert torch.zeros(1000).pin_memory().data_ptr() == address
    if not hasattr(torch.accelerator, "empty_host_cache"):
        pytest.skip("torch has no accelerator.empty_host_cache before 2.12")
    torch.accelerator.empty_host_cache()
