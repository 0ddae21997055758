"""nvidia-resiliency-ext: its queue of asynchronous calls.

Its own `TorchAsyncCheckpoint` calls `torch.cuda.synchronize`, and its copies to the host
copy nothing that is there already. Here the copy is made for it.
"""

import os

import torch
import torch.distributed as dist

from methods._method import Method


def write(state, path):
    """Saves in the worker, and syncs, which `torch.save` alone does not."""
    with open(path, "wb") as file:  # noqa: PTH123
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


class CallsQueue(Method):
    """`AsyncCallsQueue` with its persistent worker, after a clone of the state."""

    def __init__(self, place, state):
        super().__init__(place, state)
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue

        store = dist.FileStore(str(place.folder / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        self._queue = AsyncCallsQueue(persistent=True)

    def save(self, step):
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest

        clone = {name: tensor.clone() for name, tensor in self.state.items()}
        request = AsyncRequest(write, (clone, str(self.path(step))), [])
        self._queue.schedule_async_request(request)

    def wait(self):
        self._queue.maybe_finalize_async_calls(blocking=True, no_dist=True)

    def load(self, step):
        loaded = torch.load(self.path(step), weights_only=True)
        for name, tensor in self.state.items():
            tensor.copy_(loaded[name])

    def close(self):
        self._queue.close()
        dist.destroy_process_group()
