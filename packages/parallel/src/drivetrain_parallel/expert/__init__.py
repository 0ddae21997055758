"""Expert parallel: the ranks of an axis share the experts of a mixture."""
