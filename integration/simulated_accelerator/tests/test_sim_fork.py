"""Processes that are forked, and threads that free tensors."""

import os
import threading

import pytest

torch = pytest.importorskip("torch")
testing = pytest.importorskip("drivetrain_simulated_accelerator.testing")

pytestmark = pytest.mark.simulated_accelerator


def exit_code_of_fork(function):
    """Returns what a forked child exits with: 0 if the function returns true."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refuses_to_work():
    try:
        torch.ones(2, device="sim")
    except RuntimeError as error:
        return "cannot be used in a forked process" in str(error)
    return False


def fork_after_use():
    tensor = torch.ones(2, device="sim")
    torch.sim.synchronize()
    assert exit_code_of_fork(lambda: torch.sim._is_in_bad_fork()) == 0
    assert exit_code_of_fork(refuses_to_work) == 0
    assert exit_code_of_fork(lambda: torch.ones(2).sum().item() == 2) == 0
    # What the parent has is freed in the child without a word.
    assert exit_code_of_fork(lambda: tensor.__class__ and not tensor.is_pinned()) == 0
    torch.manual_seed(1)
    return tensor.sum().item()


def test_child_of_a_process_that_used_the_device_refuses_it():
    ended = testing.run_child(fork_after_use)
    assert (ended.result, ended.error) == (2.0, "")


def fork_before_use():
    assert not torch.sim.is_initialized()
    assert torch.sim.device_count() == 2
    assert torch.sim.is_available()
    assert not torch.sim.is_initialized()
    code = exit_code_of_fork(lambda: torch.ones(2, device="sim").sum().item() == 2)
    assert not torch.sim.is_initialized()
    assert torch.ones(2, device="sim").sum().item() == 2
    assert torch.sim.is_initialized()
    return code


def test_child_of_a_process_that_did_not_may_use_it():
    ended = testing.run_child(fork_before_use)
    assert (ended.result, ended.error) == (0, "")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index**2)


def load_with_workers():
    torch.ones(2, device="sim").sum().item()
    loader = torch.utils.data.DataLoader(
        Squares(), num_workers=1, pin_memory=True, multiprocessing_context="fork"
    )
    return [int(batch.to("sim")) for batch in loader]


def test_workers_of_a_data_loader_make_host_tensors():
    ended = testing.run_child(load_with_workers)
    assert (ended.result, ended.error) == ([0, 1, 4, 9], "")


def test_tensor_may_be_freed_in_another_thread():
    before = torch.sim.memory_allocated()
    tensors = [torch.ones(1000, device="sim") for _ in range(8)]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    torch.sim.synchronize()
    assert torch.sim.memory_allocated() == before
