"""Trials in processes of their own: shipped, started, watched, measured."""
