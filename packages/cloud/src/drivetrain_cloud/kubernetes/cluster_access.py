"""Where a cluster is, and as whom it is called."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain_core import MissingLibraryError, ProgramError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterAccess:
    """Where a cluster is, and as whom it is called.

    Args:
        server: URL of the API server.
        token: That proves who calls.
        token_file: Where a token lies that is renewed; it is read again before it ends.
        authority: The certificate that vouches for the server's, PEM; the system's are
            asked if it is empty.
    """

    server: str
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    authority: str = ""

    def tls(self) -> ssl.SSLContext | bool:
        """Returns how the server is checked; it always is."""
        if not self.server.startswith("https:"):
            return False
        return ssl.create_default_context(cadata=self.authority or None)


def find_access(kubeconfig: str | None = None) -> ClusterAccess:
    """Returns the access of a file, of KUBECONFIG, or of the pod that this runs in.

    Args:
        kubeconfig: A file; by default KUBECONFIG, then the pod's account, then
            `~/.kube/config`.

    Raises:
        ProgramError: There is none, or it cannot be used.
    """
    path = kubeconfig or os.environ.get("KUBECONFIG")
    if path:
        return read_kubeconfig(path)
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host and (_ACCOUNT / "token").exists():
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        host = f"[{host}]" if ":" in host else host
        return ClusterAccess(
            server=f"https://{host}:{port}",
            token_file=_ACCOUNT / "token",
            authority=(_ACCOUNT / "ca.crt").read_text(),
        )
    home = Path.home() / ".kube" / "config"
    if home.exists():
        return read_kubeconfig(home)
    message = (
        "there is no cluster to call: pass --kubeconfig FILE, set KUBECONFIG, or run in a "
        "pod with a service account"
    )
    raise ProgramError(message)


def read_kubeconfig(path: str | os.PathLike[str]) -> ClusterAccess:
    """Returns the access of a file's current context.

    Only tokens are understood: programs and certificates that prove who calls are not.

    Args:
        path: Of the file.

    Raises:
        MissingLibraryError: PyYAML is not installed.
        ProgramError: It cannot be read, or the context is not complete.
    """
    try:
        import yaml
    except ImportError as error:
        message = (
            "reading a kubeconfig needs PyYAML: "
            'pip install "drivetrain-cloud[kubernetes]"'
        )
        raise MissingLibraryError(message) from error
    try:
        config = yaml.safe_load(Path(path).read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        authority = cluster.get("certificate-authority-data") or ""
        authority = base64.b64decode(authority, validate=True).decode()
        if not authority and cluster.get("certificate-authority"):
            authority = Path(cluster["certificate-authority"]).read_text()
        server = str(cluster["server"]).rstrip("/")
    except (OSError, yaml.YAMLError, UnicodeDecodeError, binascii.Error) as error:
        message = f"the kubeconfig {path} cannot be read: {error}"
        raise ProgramError(message) from error
    except (KeyError, TypeError, AttributeError) as error:
        message = (
            f"the kubeconfig {path} lacks {error}: its current context needs a cluster "
            "with a server, and a user"
        )
        raise ProgramError(message) from error
    token_file = user.get("tokenFile")
    if not user.get("token") and not token_file:
        message = (
            f"the user of the kubeconfig {path} has {sorted(user) or 'nothing'}, and the "
            "operator needs a token or a tokenFile"
        )
        raise ProgramError(message)
    return ClusterAccess(
        server=server,
        token=str(user.get("token") or ""),
        token_file=Path(token_file) if token_file else None,
        authority=authority,
    )


def _named(config: dict[str, Any], field: str, name: str) -> dict[str, Any]:
    for one in config[field]:
        if one["name"] == name:
            found: dict[str, Any] = one
            return found
    missing = f"{field}: {name}"
    raise KeyError(missing)
