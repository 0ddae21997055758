"""Long checks run where they are asked for."""


def pytest_collection_modifyitems(config, items):
    """Leaves out what is marked `faults`, unless `-m` asks for it."""
    if "faults" in (config.getoption("markexpr", default="") or ""):
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
