"""What a training step computes: observed, and compared within a class of numerics."""
