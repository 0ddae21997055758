"""Context parallel: the ranks of an axis share the sequence of each sample."""
