"""Example programs that search their plan."""
