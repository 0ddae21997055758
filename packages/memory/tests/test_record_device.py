"""A program that is recorded has one GPU: its streams, its memory, and no other device."""

import pytest
import torch
from torch import nn

from drivetrain_memory import MemoryUseError, record
from drivetrain_memory.trace import Operation

KIB = 2**10
MODULES = {"cuda": torch.cuda, "accelerator": torch.accelerator}


def allocated(recorder):
    """Returns stream and KiB of each block, in their order."""
    events = recorder.trace().events
    events = events[events["operation"] == Operation.ALLOCATE]
    sizes = (events["size"] // KIB).tolist()
    return list(zip(events["stream"].tolist(), sizes, strict=True))


def make(kib):
    return torch.empty(kib * KIB // 4, device="cuda")


def test_streams_of_a_program_are_entered_and_left():
    with record("streams") as recorder:
        one, other = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        with torch.cuda.stream(one):
            made = [make(1)]
            with torch.cuda.stream(None):
                made += [make(2)]
            with other, other:
                made += [make(3)]
                assert torch.cuda.current_stream() == other != one
            made += [make(4)]
        with torch.cuda.StreamContext(other):
            made += [make(5)]
        made += [make(6)]
    expected = [(1, 1), (1, 2), (2, 3), (1, 4), (2, 5), (0, 6)]
    assert allocated(recorder) == expected


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_streams_of_a_program_are_set(module):
    with record("streams") as recorder:
        before, side = module.current_stream(), torch.cuda.Stream()
        module.set_stream(side)
        made = [make(1)]
        assert module.current_stream() == side
        assert len({side, module.current_stream()}) == 1
        module.set_stream(before)
        made += [make(2)]
        assert before == torch.cuda.default_stream()
    assert allocated(recorder) == [(1, 1), (0, 2)]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


OPERATIONS = {"operator": torch.neg, "function": Twice.apply}


@pytest.mark.parametrize("twice", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("outer", [0, 3])
def test_backward_runs_on_the_stream_of_its_forward(twice, outer):
    with record("backward") as recorder:
        x = make(1).requires_grad_()
        one, other = torch.cuda.Stream(), torch.Stream(device="cuda")
        with one:
            y = twice(x)
        with other:
            z = twice(y)
        with recorder.stream(outer):
            last = twice(z)
            last.backward(torch.ones_like(last))
            made = make(2)
        del made
    forward = [(0, 1), (1, 1), (2, 1), (outer, 1)]
    backward = [(outer, 1), (outer, 1), (2, 1), (1, 1), (outer, 2)]
    assert allocated(recorder) == forward + backward


def test_stream_that_a_hook_enters_is_its_own():
    with record("hook") as recorder:
        gathered = []

        def gather(gradient):
            with recorder.stream(7):
                gathered.append(make(2))
            return gradient

        x = make(1).requires_grad_()
        with recorder.stream(1):
            y = -x
        y.register_hook(gather)
        (-y).backward(torch.ones_like(y))
    assert allocated(recorder)[3:] == [(0, 1), (0, 1), (7, 2), (1, 1)]


def test_event_of_a_stream_is_done():
    with record("events"):
        side = torch.cuda.Stream()
        began = side.record_event()
        ended = side.record_event(torch.cuda.Event(enable_timing=True))
        side.wait_event(began)
        ended.synchronize()
        assert ended.query()
        assert side.query()
        assert began.elapsed_time(ended) == 1
        assert not hasattr(side, "what_no_stream_has")


@pytest.mark.parametrize("stream", [-1, 256, 1.5, True, "1", None])
def test_stream_that_a_trace_cannot_hold_is_refused(stream):
    says = "a stream is a whole number of at least 0 and at most 255"
    with record("stream") as recorder:
        made = make(1)
        with pytest.raises(MemoryUseError, match=says):
            recorder.stream(stream).__enter__()
        with pytest.raises(MemoryUseError, match=says):
            recorder.record_stream(made, stream)
    assert allocated(recorder) == [(0, 1)]
    assert recorder.trace().events["operation"].tolist()[0] == Operation.ALLOCATE


SECOND = {
    "made": lambda: torch.empty(8, device="cuda:1"),
    "copied": lambda: make(1).to("cuda:1"),
    "module": lambda: nn.Linear(2, 2).cuda(1),
    "other kind": lambda: torch.empty(8, device="mps"),
    "set": lambda: torch.cuda.set_device(1),
    "set by name": lambda: torch.cuda.set_device("cuda:1"),
    "guard": lambda: torch.cuda.device(1).__enter__(),
    "stream": lambda: torch.cuda.Stream(device=torch.device("cuda", 1)),
    "memory": lambda: torch.cuda.memory_allocated(1),
    "parallel": lambda: nn.DataParallel(nn.Linear(2, 2).cuda(), [0, 1])(make(1)),
}


@pytest.mark.parametrize("program", SECOND.values(), ids=SECOND)
def test_second_device_is_refused(program):
    says = r"beside .*cuda:0 cannot be recorded: record what each device does by itself"
    with pytest.raises(MemoryUseError, match=says), record("two"):
        program()


def test_only_device_may_be_named():
    with record("one") as recorder:
        torch.cuda.set_device(torch.device("cuda", 0))
        with torch.cuda.device(0), torch.device("cuda:0"):
            made = [torch.empty(256), make(2).to(0), make(3).cuda(0)]
        with torch.device("cpu"):
            made += [torch.empty(256)]
    assert allocated(recorder) == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_memory_is_what_the_trace_holds(module):
    with record("memory") as recorder:
        assert module.memory_allocated() == module.max_memory_allocated() == 0
        kept, gone = make(64), make(32)
        del gone
        torch.cuda.synchronize()
        module.empty_cache()
        assert module.memory_allocated() == module.memory_reserved() == 64 * KIB
        assert module.max_memory_allocated() == 96 * KIB
        module.reset_peak_memory_stats()
        assert module.max_memory_allocated() == module.max_memory_reserved() == 64 * KIB
        free, total = torch.cuda.mem_get_info()
        assert free == total - 64 * KIB
        del kept
        assert module.memory_allocated() == 0
        assert module.max_memory_allocated() == 64 * KIB
        assert torch.cuda.mem_get_info() == (total, total)
    assert recorder.trace().peak_live_bytes == 96 * KIB


def captured():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        make(1)


def pooled():
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        make(1)


def graphed():
    model = nn.Linear(8, 8).cuda()
    torch.cuda.make_graphed_callables(model, (torch.ones(2, 8).cuda(),))


REFUSED = {
    "graph": (captured, "a CUDA graph cannot be recorded: run its steps without one"),
    "graphed": (graphed, "a CUDA graph cannot be recorded: run its steps without one"),
    "pool": (pooled, "a pool of memory cannot be recorded: allocate outside of it"),
    "external": (lambda: torch.cuda.ExternalStream(1), "make one inside"),
}


@pytest.mark.parametrize(("program", "says"), REFUSED.values(), ids=REFUSED)
def test_what_belongs_to_a_device_that_is_there_is_refused(program, says):
    with pytest.raises(MemoryUseError, match=says), record("refused"):
        program()
    assert torch.cuda.current_stream is not None


def test_ranges_of_a_profiler_are_passed_over():
    with record("ranges") as recorder:
        with torch.cuda.nvtx.range("forward"):
            made = make(1)
        del made
    assert allocated(recorder) == [(0, 1)]
