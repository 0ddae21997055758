"""A restore: which step it is, where its bytes lie, and what each rank reads."""
