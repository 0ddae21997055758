"""All packages of Drivetrain at once, and which versions of them are installed.

The packages keep their own import names: `drivetrain_core`, `drivetrain_checkpoint`,
`drivetrain_comm`, `drivetrain_elastic`, `drivetrain_optim`. Importing this one imports
none of them, and no torch.
"""

from __future__ import annotations

import re
from importlib import metadata

__all__ = ["__version__", "versions"]

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Returns the versions of the installed packages of Drivetrain, and of torch.

    They are read from what is installed; nothing is imported.

    Returns:
        Versions by the name of the distribution, in order of the name.

    Example:
        >>> versions()["drivetrain"] == __version__
        True
    """
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # A broken one has none.
        (name, *_) = distribution.metadata.get_all("Name") or [""]
        name = re.sub(r"[-_.]+", "-", name).lower()
        if name in {"drivetrain", "torch"} or name.startswith("drivetrain-"):
            # The first one found is the one that an import would take.
            found.setdefault(name, distribution.version)
    return dict(sorted(found.items()))
