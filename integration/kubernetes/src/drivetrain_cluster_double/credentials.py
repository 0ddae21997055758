"""Who may call the API of the double, and the files with which clients do."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.authorize import ADMIN, service_account

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drivetrain_cluster_double.authorize import User

__all__ = ["Credentials"]


class Credentials:
    """The tokens of a cluster; for any thread.

    Args:
        folder: Where configurations of clients are written.
        authority: The certificate that clients trust; None if there is no TLS.
        find_url: Returns where the API is.

    Attributes:
        token: Of the administrator.
        users: Who calls, by their tokens.
    """

    def __init__(
        self, folder: Path, authority: Path | None, find_url: Callable[[], str]
    ) -> None:
        self._folder, self._authority, self._find_url = folder, authority, find_url
        self.token = secrets.token_urlsafe(24)
        self.users: dict[str, User] = {self.token: ADMIN}
        self._accounts: dict[tuple[str, str], str] = {}
        self._written: set[Path] = set()
        self._lock = threading.Lock()

    def token_of(self, namespace: str, account: str) -> str:
        """Returns the token of a service account."""
        with self._lock:
            found = self._accounts.get((namespace, account))
            if found is None:
                found = secrets.token_urlsafe(24)
                self._accounts[namespace, account] = found
                self.users[found] = service_account(namespace, account)
        return found

    def revoke(self, namespace: str, account: str) -> None:
        """Lets the token of a service account be good no more; the next one is new."""
        with self._lock:
            found = self._accounts.pop((namespace, account), None)
            self.users.pop(found or "", None)
            self._written.discard(self._path(f"{namespace}-{account}"))

    def admin_file(self) -> Path:
        """Returns the configuration of clients that are the administrator."""
        return self._file("admin", self.token, "default")

    def file_of(self, namespace: str, account: str) -> Path:
        """Returns the configuration of clients that are a service account."""
        token = self.token_of(namespace, account)
        return self._file(f"{namespace}-{account}", token, namespace)

    def _path(self, user: str) -> Path:
        return self._folder / f"{user}.kubeconfig"

    def _file(self, user: str, token: str, namespace: str) -> Path:
        path = self._path(user)
        with self._lock:
            # One of an earlier cluster may lie in the folder.
            if path not in self._written:
                self._written.add(path)
                path.unlink(missing_ok=True)
                path.touch(mode=0o600)
                # JSON is YAML too.
                text = json.dumps(self._config(user, token, namespace), indent=2)
                path.write_text(text)
        return path

    def _config(self, user: str, token: str, namespace: str) -> dict[str, Any]:
        server = {"server": self._find_url()}
        if self._authority is not None:
            text = base64.b64encode(self._authority.read_bytes()).decode()
            server["certificate-authority-data"] = text
        context = {"cluster": "double", "user": user, "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "double", "context": context}],
            "current-context": "double",
        }
