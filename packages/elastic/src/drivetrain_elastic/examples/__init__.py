"""Trainings to try things on."""
