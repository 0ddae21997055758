"""The daemon of a node: it owns the shared memory, and writes saves to storage."""
