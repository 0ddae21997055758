"""Saves of a state on a GPU: the stall, and what an overlapped copy costs a step."""

import statistics

import torch
from workload import milliseconds, new_place, timed

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row

_ABSENT = Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
_PIECES = 40


def make_state(size_bytes):
    """Tensors on the GPU, of as many bytes together."""
    numel = size_bytes // 4 // _PIECES
    return {f"t{i}": torch.ones(numel, device="cuda") for i in range(_PIECES)}


def pinned_copy_s(state):
    """The time of copies into pinned memory that is present."""
    targets = [torch.empty(t.shape, pin_memory=True) for t in state.values()]

    def copy():
        for target, source in zip(targets, state.values(), strict=True):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    copy()
    return statistics.median(timed(copy) for _ in range(5))


def stall(quick):
    """How long `save` holds the trainer, in copies into pinned memory."""
    if not torch.cuda.is_available():
        return _ABSENT
    state = make_state((1 if quick else 10) << 30)
    limit = pinned_copy_s(state)
    with new_place() as place:
        checkpointer = Checkpointer(place.folder, job="gpu", keep=1)
        stalls = []
        for step in range(6):
            torch.cuda.synchronize()
            handle = checkpointer.save(step, {"state": state}, persist=False)
            stalls.append(handle.stall_s)
    found = statistics.median(stalls[2:])
    return Row(
        figure=f"{found / limit:.2f} x ({milliseconds(stalls[2:])})",
        holds=found <= 1.15 * limit,
        proven_on=torch.cuda.get_device_name(),
        details={"stalls_s": stalls, "pinned_copy_s": limit},
    )


def overlap(quick):
    """How much longer a step takes during which a save is copied."""
    if not torch.cuda.is_available():
        return _ABSENT
    size = 2048 if quick else 6144
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(size, size, device="cuda")
    with new_place() as place:
        checkpointer = Checkpointer(place.folder, job="gpu", keep=1, overlap=True)

        def step(number, *, saves):
            if saves:
                state = {"model": model, "optimizer": optimizer}
                checkpointer.save(number, state, persist=False)
            model(data).square().mean().backward()
            with checkpointer.guard():
                optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()

        for number in range(4):
            step(number, saves=True)
        plain, saving = [], []
        for number in range(4, 14):
            plain.append(timed(lambda: step(0, saves=False)))
            saving.append(timed(lambda number=number: step(number, saves=True)))
    slower = statistics.median(saving) / statistics.median(plain) - 1
    return Row(
        figure=f"{slower:.1%} of {milliseconds(plain)}",
        holds=slower <= 0.03,
        proven_on=torch.cuda.get_device_name(),
        details={"plain_s": plain, "saving_s": saving},
    )
