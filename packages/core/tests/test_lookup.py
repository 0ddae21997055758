"""Which provider a service comes from, and why."""

from __future__ import annotations

import sys

import pytest

from drivetrain_core import services
from drivetrain_core._errors import PluginError
from drivetrain_core._plugins import SERVICES, clear_plugin_cache, installed
from drivetrain_core.services import (
    DcpCheckpointer,
    NoCloud,
    TorchProcessGroupFactory,
    _lookup,
    get_service,
    service_factory,
)

FALLBACKS = {
    "checkpointer": DcpCheckpointer,
    "process_group": TorchProcessGroupFactory,
}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """A service of core's that no installed package provides."""
    both = "cloud_notices:NoCloud", "cloud_notices:CloudNotices"
    monkeypatch.setitem(_lookup._FALLBACKS, "notices", both)


@pytest.fixture
def provide(tmp_path, monkeypatch):
    """Installs a package that provides services from a module of that code."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def install(distribution, entries, code):
        module = distribution.replace("-", "_")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        lines = [f"{name} = {module}:{target}" for name, target in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{SERVICES}]", *lines, ""]))
        (tmp_path / f"{module}.py").write_text(code)
        clear_plugin_cache()

    yield install
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]
    clear_plugin_cache()


@pytest.mark.parametrize("name", FALLBACKS)
def test_fallback_is_used_when_nothing_is_installed(name):
    if any(plugin.name == name for plugin in installed(SERVICES)):
        pytest.skip("an installed package provides it")
    factory = service_factory(name)
    assert factory.make is FALLBACKS[name]
    assert factory.because == "no installed package provides it"
    assert "drivetrain-core" in factory.provider


def test_provider_is_preferred_and_named(provide, caplog):
    provide(
        "acme-notices",
        {"notices": "make"},
        "class Source:\n"
        "    def __init__(self, size): self.size = size\n"
        "    def check(self, source): pass\n"
        "    def open(self, source, node, publish): pass\n"
        "make = Source\n",
    )
    caplog.set_level("INFO")
    assert get_service("notices", size=3).size == 3
    assert "notices from acme-notices 1.0 (acme_notices:make): it is installed" in (
        caplog.text
    )


def test_fallback_can_be_asked_for(provide):
    provide("acme-notices", {"notices": "make"}, "make = None")
    assert isinstance(get_service("drivetrain-core:notices"), NoCloud)


def test_two_providers_clash_until_one_is_named(provide):
    code = "class Source:\n    def check(self): ...\n    def open(self): ...\n"
    provide("acme-a", {"notices": "Source"}, code)
    provide("acme-b", {"notices": "Source"}, code)
    with pytest.raises(PluginError, match="'acme-a:notices' or 'acme-b:notices'"):
        get_service("notices")
    assert type(get_service("acme-b:notices")).__module__ == "acme_b"


def test_provider_that_breaks_the_protocol_is_an_error(provide):
    provide("acme-bad", {"notices": "make"}, "make = dict")
    with pytest.raises(PluginError, match="does not follow CloudNotices"):
        get_service("notices")


def test_provider_that_cannot_be_called_is_an_error(provide):
    provide("acme-bad", {"notices": "make"}, "make = 3")
    with pytest.raises(PluginError, match="int, which cannot be called"):
        get_service("notices")


def test_provider_that_does_not_import_is_no_reason_for_the_fallback(provide):
    provide("acme-bad", {"notices": "make"}, "import no_such_module")
    with pytest.raises(PluginError, match="no_such_module"):
        get_service("notices")


def test_service_that_core_does_not_know_may_be_provided(provide):
    provide("acme-more", {"weather": "make"}, "make = dict")
    assert get_service("weather", rain=True) == {"rain": True}


def test_unknown_service_says_what_there_is():
    with pytest.raises(PluginError, match=r"nearest: checkpointer.*process_group"):
        get_service("checkpionter")
    with pytest.raises(PluginError, match="nobody does not provide 'notices'"):
        get_service("nobody:notices")


def test_public_names_all_load():
    assert sorted(services.__all__) == services.__all__
    for name in services.__all__:
        assert getattr(services, name) is not None
    assert set(services.__all__) <= set(dir(services))
    with pytest.raises(AttributeError, match="no attribute 'Chekpointer'"):
        services.Chekpointer  # noqa: B018
