"""What was found out is kept where the environment says, or in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from drivetrain_core.services import cache_folder


def test_folder_is_the_first_that_is_named(monkeypatch):
    assert cache_folder({"DRIVETRAIN_CACHE_DIR": "a", "XDG_CACHE_HOME": "b"}) == Path(
        "a"
    )
    assert cache_folder({"XDG_CACHE_HOME": "b"}) == Path("b/drivetrain")
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder({}) == Path("/h/.cache/drivetrain")


def test_folder_without_a_home_is_a_temporary_one(monkeypatch):
    def no_home():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    assert f"drivetrain-{os.geteuid()}" in str(cache_folder({}))
