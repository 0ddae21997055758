"""State on a GPU, copied by a stream of its own into registered memory."""

import gc

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, StorageError
from drivetrain_checkpoint.dcp import Stager
from drivetrain_core.accelerators import accelerator_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def make():
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "position": 1}


def weights(state):
    return state["model"].weight.detach().clone()


@pytest.mark.parametrize("overlap", [False, True])
def test_state_of_a_gpu_comes_back(tmp_path, overlap):
    checkpointer = Checkpointer(tmp_path, job="gpu", overlap=overlap)
    state = make()
    before = weights(state)
    handle = checkpointer.save(1, state)
    with checkpointer.guard(), torch.no_grad():
        state["model"].weight.zero_()
    assert handle.wait(60)
    for place in ("memory", "storage"):
        into = make()
        assert checkpointer.restore(into) == 1, place
        assert torch.equal(weights(into), before)
        checkpointer.stop_daemon()


def test_large_tensors_come_back_by_way_of_page_locked_memory(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="gpu")
    # Several pieces, the last of which is not full; and rows that are no run of bytes.
    state = {"big": torch.randn(30_000_001, device="cuda")}
    state["turned"] = torch.randn(300, 200, device="cuda").T
    checkpointer.save(1, state).wait(60)
    for _ in ("memory", "storage"):
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        checkpointer.restore(into)
        assert all(torch.equal(into[name], state[name]) for name in state)
        checkpointer.stop_daemon()


def test_state_that_is_staged_lies_in_registered_memory():
    stager = Stager()
    state = {"big": torch.randn(1 << 20, device="cuda")}
    staged = stager.stage(state)
    assert staged["big"].is_pinned()
    assert torch.equal(staged["big"], state["big"].cpu())
    stager.close()


def test_memory_is_registered_once(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="gpu")
    state = make()
    checkpointer.save(1, state).wait(60)
    link = checkpointer._memory._link
    assert link._release.alive
    checkpointer.save(2, state).wait(60)
    assert checkpointer._memory._link is link
    checkpointer.stop_daemon()


def test_change_without_a_guard_is_found(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="gpu", overlap=True)
    state = {"big": torch.ones(1 << 28, device="cuda")}
    handle = checkpointer.save(1, state)
    state["big"].zero_()
    with pytest.raises(StorageError, match="changed while it was being copied"):
        handle.wait(60)
    checkpointer.stop_daemon()


def test_memory_is_given_back_where_a_checkpointer_is_dropped(tmp_path):
    """What stays registered without its mapping makes a later registration fail."""
    for name in ("first", "second"):
        checkpointer = Checkpointer(tmp_path / name, job=name)
        checkpointer.save(1, make(), persist=False)
        link = checkpointer._memory._link
        assert link._release.alive
        address, size = link._owner.address, link._owner.size_bytes
        del checkpointer, link
        gc.collect()
    assert int(torch.cuda.cudart().cudaHostUnregister(address)) != 0, size
    # Nothing of that refusal is left for the next kernel to raise.
    accelerator_of("cuda").unregister_host_memory(address)
    assert float(torch.ones(8, device="cuda").sum()) == 8.0
