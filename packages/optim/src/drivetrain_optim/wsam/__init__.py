"""WSAM: a wrapper of a base optimizer, and the arithmetic of its two passes."""
