"""Checks of options, parameters, gradients and saved states."""
