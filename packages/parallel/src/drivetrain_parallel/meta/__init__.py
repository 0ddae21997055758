"""Models without memory for weights: built, planned, and given weights."""
