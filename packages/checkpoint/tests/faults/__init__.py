"""Faults of processes and storage, put in on purpose, and what must hold under them.

Helpers, from the ground up:

- `shim.cpp`, `call.hpp`: a library between a process and its storage; `shim.py` compiles
  and commands it.
- `disk.py`: what may be left of a file system after a power cut. `oplog.py`: how the
  shim's log becomes such a disk.
- `state.py`: states to save, of which every element tells its step, and the rules that
  any folder of checkpoints keeps.
- `trainers.py`: ranks in processes of their own, quickly started. `stage.py`: a place for
  one experiment: trainers, daemon, folder and faults.
- `schedules.py`: random schedules of all of it, over several starts of one training.
- `tally.py`: how many points were tried, and what was violated.
"""
