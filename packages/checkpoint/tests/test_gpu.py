"""State on a GPU, copied by a stream of its own into registered memory."""

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, StorageError

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
    assert handle.wait(30)
    for place in ("memory", "storage"):
        into = make()
        assert checkpointer.restore(into) == 1, place
        assert torch.equal(weights(into), before)
        checkpointer.stop_daemon()


def test_memory_is_registered_once(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="gpu")
    state = make()
    checkpointer.save(1, state).wait(30)
    link = checkpointer._memory._link
    assert link._is_registered
    checkpointer.save(2, state).wait(30)
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
