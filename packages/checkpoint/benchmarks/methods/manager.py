"""torch_checkpointing: its manager, set for a machine without a GPU."""

from methods._method import Method


class Manager(Method):
    """`CheckpointManager` with asynchronous saves through a process."""

    storage = "not synced"

    def __init__(self, place, state):
        super().__init__(place, state)
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.staging import CheckpointStagerConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        staging = CheckpointStagerConfig(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        config = CheckpointManager.Config(
            save=AsyncCheckpointSaverConfig(staging_config=staging),
            # With direct writes, its default, ext4 refuses a file's unaligned end.
            storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
        )
        self._manager = CheckpointManager(config)
        self._future = None

    def save(self, step):
        self._future = self._manager.save(str(self.path(step)), {"state": self.state})
        with self._manager.lock():
            pass  # from here on the state may be changed

    def wait(self):
        self._future.result()

    def load(self, step):
        self._manager.load(str(self.path(step)), into={"state": self.state})

    def close(self):
        self._manager.close()
