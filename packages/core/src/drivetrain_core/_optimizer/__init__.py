"""Optimizers: rebuilt from a recipe, with fp32 master weights."""
