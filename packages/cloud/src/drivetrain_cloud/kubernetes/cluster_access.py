"""Where a cluster is, and as whom it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import MissingLibraryError, ProgramError

if TYPE_CHECKING:
    import aiohttp

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOME = Path("~/.kube/config")


class ClusterAccess:
    """Where a cluster is, and who calls it, read as `kubectl` reads it.

    A kubeconfig may name programs that prove who calls (those of EKS, GKE and AKS),
    certificates (kind, kubeadm), tokens and files of tokens; in a pod it is the pod's
    account. A token that ends is read, or asked for, anew; certificates are read once.

    Args:
        kubeconfig: Files, as KUBECONFIG names them; by default those of KUBECONFIG, then
            the pod's account, then `~/.kube/config`.
        server: URL of an API server that asks nobody who he is, instead of all that.

    Raises:
        MissingLibraryError: kubernetes_asyncio is not installed.
        ProgramError: There is no cluster to call.
    """

    def __init__(
        self, kubeconfig: str | os.PathLike[str] | None = None, *, server: str = ""
    ) -> None:
        try:
            from kubernetes_asyncio.client import Configuration
        except ImportError as error:
            message = (
                "calls of an API server need kubernetes_asyncio: "
                'pip install "drivetrain-cloud[kubernetes]"'
            )
            raise MissingLibraryError(message) from error
        self._configuration = Configuration(host=server)
        self._files = str(kubeconfig or os.environ.get("KUBECONFIG") or "")
        self._loader: Any = None
        in_pod = os.environ.get("KUBERNETES_SERVICE_HOST") and _ACCOUNT.exists()
        if not (server or self._files or in_pod):
            self._files = str(_HOME)
        self._is_known = bool(server)
        if self._files and not any(
            Path(one).expanduser().is_file() for one in self._files.split(os.pathsep)
        ):
            message = (
                f"there is no cluster to call: no kubeconfig at {self._files}; pass "
                "--kubeconfig FILE, set KUBECONFIG, or run in a pod with an account"
            )
            raise ProgramError(message)

    @property
    def server(self) -> str:
        """URL of the API server, without a slash at its end."""
        return str(self._configuration.host).rstrip("/")

    async def read(self) -> dict[str, str]:
        """Reads what was given, or again, and returns the headers that say who calls.

        Raises:
            ProgramError: It cannot be read, or a program that it names has failed.
        """
        from kubernetes_asyncio import config

        try:
            if self._is_known:
                pass
            elif self._loader is not None:
                await self._loader.load_and_set(self._configuration)
            elif self._files:
                self._loader = await config.load_kube_config(
                    self._files, client_configuration=self._configuration
                )
            else:
                load: Any = config.load_incluster_config
                load(client_configuration=self._configuration)
        except Exception as error:
            # The library lets whatever a file that is wrong leads to through.
            source = self._files or "the pod's account"
            message = f"{source} does not say how the cluster is called: {error!r}"
            raise ProgramError(message) from error
        token = self._configuration.api_key.get("BearerToken", "")
        return {"Authorization": token.strip()} if token else {}

    def connect(self) -> aiohttp.ClientSession:
        """Returns a session that proves who calls, and checks the server; to be closed."""
        from kubernetes_asyncio.client.rest import RESTClientObject

        rest = RESTClientObject(self._configuration, maxsize=64)
        session: aiohttp.ClientSession = rest.pool_manager
        return session

    def options(self) -> dict[str, Any]:
        """Returns what calls are made with: a proxy, and the server's name if it has another."""
        found = {
            "proxy": self._configuration.proxy,
            "server_hostname": self._configuration.tls_server_name,
        }
        return {key: value for key, value in found.items() if value}
