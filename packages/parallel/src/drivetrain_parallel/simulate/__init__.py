"""Simulates training on clusters that are not at hand: `drivetrain simulate`."""
