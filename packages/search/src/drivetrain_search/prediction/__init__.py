"""Time and memory of a plan, predicted before its trial."""
