"""Where rules come from, as a reader can look them up."""

from __future__ import annotations

NETWORKING = "NCCL manual 2.32, networking troubleshooting"
GPU = "NCCL manual 2.32, GPU troubleshooting"
TUNING = "NCCL manual 2.32, performance and tuning"
KERNEL = "Linux kernel documentation, networking/ip-sysctl"
GLOO = "Gloo's source, April 2026, transport/tcp/pair.cc"


def manual(setting: str) -> str:
    """Returns the entry of a setting in NCCL's manual.

    Args:
        setting: The variable.
    """
    return f"NCCL manual 2.32, environment variables, {setting}"


def answer(where: str) -> str:
    """Returns what a developer of the project answered to users.

    Args:
        where: The project and the number.
    """
    return f"{where}, an answer of its developers"


def issue(where: str) -> str:
    """Returns a report of users: what was seen there was not seen here.

    Args:
        where: The project and the number.
    """
    return f"{where}, a report of users"


def torch_source(file: str) -> str:
    """Returns a file of torch's source.

    Args:
        file: Its name.
    """
    return f"torch 2.13, {file}"
