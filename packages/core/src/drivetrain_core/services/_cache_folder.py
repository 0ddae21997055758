"""Where what was found out on this machine is kept from run to run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder under which each package keeps a folder of its own.

    Example:
        >>> cache_folder({"XDG_CACHE_HOME": "/caches"}).as_posix()
        '/caches/drivetrain'
        >>> cache_folder({"DRIVETRAIN_CACHE_DIR": "/mine"}).as_posix()
        '/mine'
    """
    given = environment.get("DRIVETRAIN_CACHE_DIR")
    if given:
        return Path(given)
    base = environment.get("XDG_CACHE_HOME")
    try:
        caches = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # This user has no home.
        caches = Path(tempfile.gettempdir()) / f"drivetrain-{os.geteuid()}"
    return caches / "drivetrain"
