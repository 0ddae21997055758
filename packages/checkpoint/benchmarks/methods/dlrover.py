"""DLRover's Flash Checkpoint, with its saver in a process beside the trainer.

Under `dlrover-run` the elastic agent starts the saver. Here a process does that has
nothing else of the agent, so that the saver lives on when a trainer dies, as there.
"""

import contextlib
import os
import subprocess
import sys
import time

import torch

from methods._method import Method

_LONGEST_SKIP_S = 10.0
_AGENT = """
import os, time
from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver
AsyncCheckpointSaver.start_async_saving_ckpt()
print("ready", flush=True)
while True:
    time.sleep(60)
"""


class FlashCheckpoint(Method):
    """`DdpCheckpointer` to storage, which goes through shared memory."""

    # The tracker file is synced before it is flushed, the tensors never.
    storage = "not synced"

    def __init__(self, place, state):
        super().__init__(place, state)
        _join(place)
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self._checkpointer = DdpCheckpointer(str(place.folder))
        self._step = 0

    @staticmethod
    def start_node(place):
        _join(place)
        command = [sys.executable, "-c", _AGENT]
        environment = {**place.environment(), **_names(place)}
        agent = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in agent.stdout:
            if "ready" in line:
                return [agent]
        message = "the process with DLRover's saver does not start"
        raise RuntimeError(message)

    def save(self, step):
        self._step = step + 1  # its step 0 means that there is none
        deadline = time.monotonic() + _LONGEST_SKIP_S
        # It skips a save, without a word to the caller, while its lock is not to be had.
        while self._checkpointer._engine._cached_step != self._step:
            if time.monotonic() > deadline:
                message = f"it goes on to skip the save of step {self._step}"
                raise RuntimeError(message)
            self._checkpointer.save_checkpoint(self._step, dict(self.state))

    def wait(self):
        from dlrover.python.common.constants import CheckpointConstant

        tracker = self.place.folder / CheckpointConstant.TRACER_FILE_NAME
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                if int(tracker.read_text()) == self._step:
                    return
            time.sleep(0.005)

    def load(self, step):
        engine = self._checkpointer._engine
        found, loaded = engine.get_state_dict_from_memory()
        if found == step + 1 and loaded:
            (tensors,) = loaded.values()
        else:
            path = self.place.folder / str(step + 1) / "rank_0.pt"
            tensors = torch.load(path, weights_only=True)
        for name, tensor in self.state.items():
            tensor.copy_(tensors[name])

    def close(self):
        self._checkpointer._engine.close()


def _names(place):
    """By which the trainer and the saver of one job find each other."""
    return {"TORCHELASTIC_RUN_ID": place.runtime.name, "ROLE_NAME": "dlrover-trainer"}


def _join(place):
    os.environ.update(_names(place))
