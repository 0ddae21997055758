"""The programs whose traces ship.

- `models.py`: what is trained. `workloads.py`: its training steps, recorded.
- `patterns.py`: what is hard on an allocator.
"""
