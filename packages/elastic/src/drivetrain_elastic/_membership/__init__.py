"""The membership of a worker: its ranks, the process groups of a world, and who assigns them."""
