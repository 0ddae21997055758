"""The training loop of a worker: steps, gradients, and the state that moves between ranks."""
