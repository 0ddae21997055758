"""What is asked of every way to save that is compared."""


class Method:
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

    def save(self, step):
        """Saves; when it returns, the state may be changed."""
        raise NotImplementedError

    def wait(self):
        """Waits until the last save is complete, by the method's own word."""

    def load(self, step):
        """Loads a step into the state, or raises, in a process that did not save it."""
        raise NotImplementedError

    def close(self):
        """Ends what the method has started."""

    @staticmethod
    def start_node(place):
        """Starts what a node must run beside its trainers; returns the processes."""
        return []
