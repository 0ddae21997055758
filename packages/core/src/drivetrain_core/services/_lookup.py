"""Finds the provider of a service: an installed package's, or the fallback here."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import PluginError
from drivetrain_core._plugins import SERVICES, find_plugin, installed, load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_HERE = "drivetrain-core"
_PACKAGE = "drivetrain_core.services"
# Service, the fallback that makes it, and the protocol that a provider's must follow.
_FALLBACKS = {
    "checkpointer": ("_dcp_checkpointer:DcpCheckpointer", "checkpointer:Checkpointer"),
    "cloud_notices": ("cloud_notices:NoCloud", "cloud_notices:CloudNotices"),
    "job_store": ("job_store:NoJobStore", "job_store:JobStore"),
    "model_layout": ("model_layout:NoModelLayout", "model_layout:ModelLayout"),
    "plan_search": ("plan_search:NoPlanSearch", "plan_search:PlanSearch"),
    "process_group": (
        "_torch_process_group:TorchProcessGroupFactory",
        "process_group:ProcessGroupFactory",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceFactory:
    """The provider that was chosen for a service; call it to get one.

    Args:
        name: The service.
        provider: Who provides it: a distribution, its version, and what is called.
        because: Why it was chosen.
        make: Makes the service.
        protocol: What it must follow; None where core knows no such service.
    """

    name: str
    provider: str
    because: str
    make: Callable[..., object]
    protocol: type | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the service, made with these arguments.

        Raises:
            PluginError: What was made does not follow the protocol of the service.
        """
        try:
            service = self.make(*args, **kwargs)
        except Exception as error:
            error.add_note(f"{self.name!r} is provided by {self.provider}")
            raise
        if self.protocol is not None and not isinstance(service, self.protocol):
            message = (
                f"{self.provider} made a {type(service).__name__}, which does not "
                f"follow {self.protocol.__name__}, the protocol of {self.name!r}. Ask "
                "its authors to run the contract suite of drivetrain_testing, or "
                f"remove it: pip uninstall {self.provider.partition(' ')[0]}"
            )
            raise PluginError(message)
        return service


def get_service(name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns a service from the package that provides it, or from core's fallback.

    Which one it is, and why, is logged.

    Args:
        name: `checkpointer`, `cloud_notices`, `job_store`, `model_layout`,
            `plan_search`, `process_group`, or what an installed package declares;
            `distribution:name` picks one of several providers, and
            `drivetrain-core:name` the fallback.
        *args: What the provider is called with.
        **kwargs: What the provider is called with.

    Raises:
        PluginError: Nobody provides it, two packages do, or the provider is broken.

    Example:
        >>> get_service("drivetrain-core:cloud_notices")  # doctest: +ELLIPSIS
        <drivetrain_core.services.cloud_notices.NoCloud object at 0x...>
    """
    factory = service_factory(name)
    logger.info("%s from %s: %s", name, factory.provider, factory.because)
    return factory(*args, **kwargs)


def service_factory(name: str) -> ServiceFactory:
    """Returns the provider of a service, and says why it is this one.

    Args:
        name: The service, as `get_service` takes it.

    Raises:
        PluginError: Nobody provides it, two packages do, or the provider does not load.

    Example:
        >>> service_factory("drivetrain-core:checkpointer").because
        'the fallback was asked for'
    """
    plugin = find_plugin(SERVICES, name)
    if plugin is not None:
        make = load_plugin(SERVICES, name)
        if not callable(make):
            message = f"{plugin} is a {type(make).__name__}, which cannot be called"
            raise PluginError(message)
        known = _FALLBACKS.get(plugin.name)
        return ServiceFactory(
            name=plugin.name,
            provider=f"{plugin.distribution} {plugin.version} ({plugin.target})",
            because="it is installed",
            make=make,
            protocol=_load(known[1]) if known else None,
        )
    distribution, _, bare = name.rpartition(":")
    if bare not in _FALLBACKS or distribution not in {"", _HERE}:
        raise PluginError(_unknown(name, distribution, bare))
    fallback, protocol = _FALLBACKS[bare]
    return ServiceFactory(
        name=bare,
        provider=f"{_HERE} ({_PACKAGE}.{fallback})",
        because=(
            "the fallback was asked for"
            if distribution
            else "no installed package provides it"
        ),
        make=_load(fallback),
        protocol=_load(protocol),
    )


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(f"{_PACKAGE}.{module}"), attribute)


def _unknown(name: str, distribution: str, bare: str) -> str:
    plugins = installed(SERVICES)
    names = sorted({*_FALLBACKS, *(plugin.name for plugin in plugins)})
    near = difflib.get_close_matches(bare, names, n=3)
    if distribution and bare in names:
        providers = [p.qualified_name for p in plugins if p.name == bare]
        providers += [f"{_HERE}:{bare}"] if bare in _FALLBACKS else []
        return f"{distribution} does not provide {bare!r}; {', '.join(providers)} do"
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return (
        f"no service {name!r}{hint}. There are {', '.join(names)}. Install the package "
        "that offers it, or declare it in your pyproject.toml: "
        f'[project.entry-points."{SERVICES}"] {bare} = "your_module:your_function"'
    )
