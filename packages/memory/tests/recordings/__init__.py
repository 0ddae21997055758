"""The programs whose recorded traces ship.

- `models.py`: what is trained. `workloads.py`: its training steps, recorded.
"""
