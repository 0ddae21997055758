"""What a model asks for is recorded without a device and without values."""

import torch
from torch import nn

from drivetrain_memory import record
from drivetrain_memory.trace import Operation


def operations(trace):
    return trace.events["operation"].tolist()


def test_storages_come_and_go_as_tensors_do():
    with record("two") as recorder:
        first = torch.empty(1000)
        view = first.view(10, 100)
        second = first + 1
        del first, second
        recorder.step()
        del view
    trace = recorder.trace()
    assert operations(trace) == [
        Operation.ALLOCATE,
        Operation.ALLOCATE,
        Operation.FREE,
        Operation.STEP,
        Operation.FREE,
    ]
    assert trace.events["size"][:2].tolist() == [4000, 4000]


def test_side_streams_are_kept():
    with record("streams") as recorder:
        with recorder.stream(2):
            gathered = torch.empty(256)
        recorder.record_stream(gathered, 0)
        del gathered
    trace = recorder.trace()
    assert operations(trace) == [
        Operation.ALLOCATE,
        Operation.RECORD_STREAM,
        Operation.FREE,
    ]
    assert trace.events["stream"].tolist() == [2, 0, 0]


def test_model_larger_than_the_machine_is_recorded():
    with record("large") as recorder:
        model = nn.Sequential(*(nn.Linear(65_536, 65_536) for _ in range(4)))
        recorder.step()
        model(torch.empty(4, 65_536)).sum().backward()
    # Weights and gradients, four bytes each.
    assert recorder.trace().peak_live_bytes > 2 * 4 * 65_536**2 * 4


def test_training_step_frees_what_it_made():
    with record("steps") as recorder:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        live = []
        for _ in range(3):
            recorder.step()
            model(torch.empty(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            events = operations(recorder.trace())
            live.append(events.count(Operation.ALLOCATE) - events.count(Operation.FREE))
    assert live[1] == live[2]
