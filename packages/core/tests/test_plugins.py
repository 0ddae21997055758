"""The loader of entry points, on real distributions in a temporary folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from drivetrain_core._errors import PluginError
from drivetrain_core._plugins import (
    OPTIMIZATIONS,
    SERVICES,
    PluginInfo,
    clear_plugin_cache,
    find_plugin,
    installed,
    load_plugin,
)


def test_load_plugin_imports_only_what_is_asked_for(distribute):
    distribute(
        "acme-one", [("one", "acme_one:value")], module="acme_one", code="value = 1"
    )
    distribute(
        "acme-two", [("two", "acme_two:value")], module="acme_two", code="value = 2"
    )
    assert load_plugin(SERVICES, "one") == 1
    assert "acme_one" in sys.modules
    assert "acme_two" not in sys.modules


def test_load_plugin_returns_the_same_object_again(distribute):
    distribute("acme", [("one", "acme:value")], module="acme", code="value = object()")
    assert load_plugin(SERVICES, "one") is load_plugin(SERVICES, "acme:one")


def test_installed_lists_without_importing(distribute):
    distribute("acme-b", [("beta", "acme_b:B"), ("alpha", "acme_b:A")], version="2.5")
    assert [p for p in installed(SERVICES) if p.distribution == "acme-b"] == [
        PluginInfo("alpha", "acme-b", "2.5", "acme_b:A"),
        PluginInfo("beta", "acme-b", "2.5", "acme_b:B"),
    ]
    assert "acme_b" not in sys.modules


def test_installed_keeps_groups_apart(distribute):
    distribute("acme", [("thing", "acme:value")], group=OPTIMIZATIONS)
    assert "thing" in {plugin.name for plugin in installed(OPTIMIZATIONS)}
    assert "thing" not in {plugin.name for plugin in installed(SERVICES)}


def test_installed_follows_the_search_path(distribute, monkeypatch):
    distribute("acme", [("thing", "acme:value")])
    assert find_plugin(SERVICES, "thing")
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    assert find_plugin(SERVICES, "thing") is None


def test_installed_reads_a_distribution_without_metadata(distribute):
    folder = distribute("acme", [("thing", "acme:value")])
    (folder / "acme-1.0.dist-info" / "METADATA").unlink()
    clear_plugin_cache()
    plugin = find_plugin(SERVICES, "thing")
    assert plugin is not None
    assert plugin.target == "acme:value"


def test_clash_names_both_and_the_form_that_works(distribute):
    distribute("acme-a", [("one", "acme_a:value")], module="acme_a", code="value = 'a'")
    distribute("acme_b", [("one", "acme_b:value")], module="acme_b", code="value = 'b'")
    with pytest.raises(PluginError) as caught:
        load_plugin(SERVICES, "one")
    message = str(caught.value)
    assert "acme-a 1.0 (acme_a:value)" in message
    assert "'acme-a:one' or 'acme_b:one'" in message
    assert load_plugin(SERVICES, "acme-a:one") == "a"
    assert load_plugin(SERVICES, "ACME.B:one") == "b"


def test_clash_inside_one_distribution_asks_its_authors(distribute):
    distribute("acme", [("one", "acme:first"), ("one", "acme:second")])
    with pytest.raises(PluginError, match="Ask the authors of acme"):
        load_plugin(SERVICES, "one")


def test_unknown_name_says_what_is_near_and_how_to_declare(distribute):
    distribute("acme", [("checkpointer", "acme:value")])
    with pytest.raises(PluginError) as caught:
        load_plugin(SERVICES, "checkpionter")
    message = str(caught.value)
    assert "nearest: checkpointer" in message
    assert "checkpointer (acme 1.0, acme:value)" in message
    assert '[project.entry-points."drivetrain.services"] checkpionter =' in message


def test_unknown_qualified_name_is_answered_in_kind(distribute):
    distribute("acme", [("checkpointer", "acme:value")])
    with pytest.raises(PluginError, match="nearest: acme:checkpointer"):
        load_plugin(SERVICES, "other:checkpointer")


@pytest.mark.parametrize(
    ("code", "target", "cause", "fix"),
    [
        (
            "import no_such_dep",
            "acme:value",
            "No module named 'no_such_dep'",
            "install",
        ),
        ("raise RuntimeError('boom')", "acme:value", "RuntimeError: boom", "python -c"),
        ("1/0", "acme:value", "ZeroDivisionError", "python -c"),
        ("value = = 1", "acme:value", "SyntaxError", "python -c"),
        ("raise SystemExit(3)", "acme:value", "SystemExit: 3", "python -c"),
        ("other = 1", "acme:value", "AttributeError", "python -c"),
        ("value = 1", "acme.sub:value", "ModuleNotFoundError", "python -c"),
    ],
)
def test_broken_plugin_is_named_with_cause_and_fix(
    distribute, code, target, cause, fix
):
    distribute("acme-x", [("one", target)], module="acme", code=code)
    with pytest.raises(PluginError) as caught:
        load_plugin(SERVICES, "one")
    message = str(caught.value)
    for part in ("acme-x 1.0", "'one'", target, cause, fix, "pip install"):
        assert part in message
    assert caught.value.__cause__ is not None


def test_plugin_that_is_interrupted_is_not_swallowed(distribute):
    distribute(
        "acme", [("one", "acme:value")], module="acme", code="raise KeyboardInterrupt"
    )
    with pytest.raises(KeyboardInterrupt):
        load_plugin(SERVICES, "one")


def test_plugin_error_is_an_import_error(distribute):
    with pytest.raises(ImportError):
        load_plugin(SERVICES, "no-such-thing")


def test_find_plugin_of_unknown_name_is_none():
    assert find_plugin(SERVICES, "no-such-thing") is None
    assert find_plugin(SERVICES, "no-such:thing") is None


def test_import_is_light():
    code = (
        "import sys; import drivetrain_core._plugins, drivetrain_core.services, "
        "drivetrain_testing; "
        "slow = {'torch', 'numpy', 'yaml', 'importlib.metadata', 'difflib'}; "
        "sys.exit(bool(slow & set(sys.modules)))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-S", "-c", code], env=path, check=True)


def test_distribution_that_cannot_be_read_hides_no_other(distribute, caplog):
    distribute("good", [("mine", "json:loads")])
    folder = distribute("torn", [("other", "json:dumps")])
    (folder / "torn-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{SERVICES}]\nother\n"
    )
    clear_plugin_cache()
    names = [plugin.name for plugin in installed(SERVICES)]
    assert "mine" in names
    assert "other" not in names
    assert "the entry points of torn cannot be read" in caplog.text


def test_package_that_is_missing_is_named_by_a_qualified_name():
    with pytest.raises(PluginError, match=r"pip install --upgrade drivetrain-nowhere$"):
        load_plugin(SERVICES, "drivetrain-nowhere:mine")
