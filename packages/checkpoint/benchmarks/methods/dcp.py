"""torch's distributed checkpoints: blocking, and its two kinds of asynchronous saves."""

import warnings

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from methods._method import Method


class Blocking(Method):
    """`dcp.save`."""

    storage = "data synced"  # `.metadata` and the folder are not
    num_threads = 1

    def save(self, step):
        writer = dcp.FileSystemWriter(self.path(step), thread_count=self.num_threads)
        dcp.save(self.state, storage_writer=writer, no_dist=True)

    def load(self, step):
        dcp.load(self.state, checkpoint_id=self.path(step), no_dist=True)


class BlockingTwoThreads(Blocking):
    """`dcp.save` with two threads."""

    num_threads = 2


class Asynchronous(Blocking):
    """`dcp.async_save` with the stager that it takes by default."""

    kind = AsyncCheckpointerType.THREAD
    reuses = False

    def __init__(self, place, state):
        super().__init__(place, state)
        self._future = None
        # An asynchronous save wants a process group, of a single process too.
        store = dist.FileStore(str(place.folder / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        options = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        self._stager = DefaultStager(options) if self.reuses else None

    def save(self, step):
        with warnings.catch_warnings(action="ignore"):
            self._future = dcp.async_save(
                self.state,
                checkpoint_id=self.path(step),
                async_checkpointer_type=self.kind,
                async_stager=self._stager,
            )

    def wait(self):
        self._future.result()

    def close(self):
        if self._stager is not None:
            self._stager.close()
        dist.destroy_process_group()


class ReusedAsynchronous(Asynchronous):
    """`dcp.async_save` with a stager that keeps its shared memory."""

    reuses = True


class Process(Asynchronous):
    """`dcp.async_save` through a process."""

    kind = AsyncCheckpointerType.PROCESS


class ReusedProcess(Process):
    """`dcp.async_save` through a process, from shared memory that is kept."""

    reuses = True
