"""What Redis does in one step: a store's writes wake those who wait for the key.

A job is one hash (KEYS[1]), so that a single time to live covers it and the number of
keys is known at once. Beside it stand, with the same prefix:

    :w:KEY     the ids of those who wait for a key
    :need      for each id, how many keys are still missing
    :wake:ID   a list that gets one element when none is
    :once      the last reply to each writer, so that a repeated write counts once
    :born      a mark of the job that is gone when the server has lost its memory

Checking for keys and being counted as waiting is one step here, and so is writing a key
and waking those who wait: no wake-up can be lost, and nobody has to ask again.
"""

from __future__ import annotations

from importlib.resources import files

_FOLDER = files(__package__) / "lua"


def _script(*names: str) -> str:
    return "".join((_FOLDER / f"{name}.lua").read_text() for name in names)


SET = _script("write", "set")
ADD = _script("write", "once", "add")
APPEND = _script("write", "once", "append")
COMPARE_SET = _script("write", "once", "compare_set")
DELETE = _script("write", "once", "delete")
WAIT = _script("wait")
MISSING = _script("missing")
LEAVE = _script("leave")
GREET = _script("greet")
JOIN = _script("write", "join")
RESIGN = _script("write", "resign")
