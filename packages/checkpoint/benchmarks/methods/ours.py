"""drivetrain-checkpoint."""

from workload import NUM_THREADS

from drivetrain_checkpoint import Checkpointer
from methods._method import Method


class Ours(Method):
    """The package itself, without what its `prewarm` would save the first save."""

    def __init__(self, place, state):
        super().__init__(place, state)
        self._checkpointer = Checkpointer(
            place.folder, job="peers", keep=2, num_threads=NUM_THREADS
        )
        self._handle = None

    def save(self, step):
        self._handle = self._checkpointer.save(step, {"state": self.state})

    def wait(self):
        self._handle.wait()

    def load(self, step):
        self._checkpointer.restore({"state": self.state}, step)

    def close(self):
        self._checkpointer.flush()
        self._checkpointer.stop_daemon()


class Prepared(Ours):
    """The package, its memory prepared when the trainer starts."""

    def __init__(self, place, state):
        super().__init__(place, state)
        self._checkpointer.prewarm({"state": self.state})
