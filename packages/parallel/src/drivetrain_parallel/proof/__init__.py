"""Proof that a changed program computes what the program as written does."""
