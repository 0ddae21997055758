"""The daemon's bookkeeping, without a process of its own."""

import os

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._daemon import Daemon


def test_word_of_a_save_that_is_written_already_keeps_nothing_busy(tmp_path):
    daemon = Daemon(tmp_path, 1)
    arena = Arena.create(4096, 4096)
    daemon._arm(0, os.dup(arena.fd))
    with daemon._changed:
        daemon._done[0] = 5
    daemon._enqueue(0, 1, 5, "0123456789abcdef")
    assert daemon._free(0, 1, 0.0)


def test_word_of_a_save_that_is_not_there_frees_its_generation(tmp_path):
    daemon = Daemon(tmp_path, 1)
    arena = Arena.create(4096, 4096)
    daemon._arm(0, os.dup(arena.fd))
    daemon._enqueue(0, 0, 7, "0123456789abcdef")
    assert daemon._free(0, 0, 10.0)
    assert daemon._wait("0123456789abcdef", 10.0) == {"state": "written"}
