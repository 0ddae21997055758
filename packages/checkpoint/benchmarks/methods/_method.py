"""What is asked of every way to save that is compared."""

from abc import ABC, abstractmethod


class Method(ABC):
    """A way to save a state, in a process of its own.

    `storage` says what is on the disk when `wait` returns.

    Args:
        place: Where it saves.
        state: Tensors by name; they stay the same objects from save to save.
    """

    storage = "synced"

    def __init__(self, place, state):
        self.place = place
        self.state = state

    def path(self, step):
        """Where the save of a step goes."""
        return self.place.folder / f"save-{step}"

    @abstractmethod
    def save(self, step):
        """Saves; when it returns, the state may be changed."""

    def wait(self):  # noqa: B027 - a blocking save has nothing to wait for
        """Waits until the last save is complete, by the method's own word."""

    @abstractmethod
    def load(self, step):
        """Loads a step into the state, or raises, in a process that did not save it."""

    def close(self):  # noqa: B027 - most have started nothing
        """Ends what the method has started."""

    @staticmethod
    def start_node(place):
        """Starts what a node must run beside its trainers; returns the processes."""
        return []
