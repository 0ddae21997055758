"""Who may call the API of the double: tokens, a certificate, and files of clients."""

from __future__ import annotations

import base64
import ipaddress
import json
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from drivetrain_cluster_double import times
from drivetrain_cluster_double.authorize import ADMIN, service_account

_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "key_cert_sign"),
    *(
        "data_encipherment",
        "key_agreement",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
)


def make_certificate(folder: Path) -> Path:
    """Makes a certificate of this machine that clients trust as it is.

    Args:
        folder: Where to write it; only its owner should be able to read it.

    Returns:
        The file of the certificate, beside which one lies with its key as well, `tls.pem`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "drivetrain double")])
    usages = dict.fromkeys(_USAGES, False)
    usages |= {"digital_signature": True, "key_cert_sign": True}
    hosts = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName("localhost"),
    ]
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(times.now() - timedelta(days=1))
        .not_valid_after(times.now() + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usages), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path, both = folder / "ca.crt", folder / "tls.pem"
    path.write_bytes(certificate.public_bytes(pem))
    both.touch(mode=0o600)
    both.write_bytes(path.read_bytes() + key.private_bytes(pem, *form))
    return path


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
        self.users: dict[str, str] = {self.token: ADMIN}
        self._accounts: dict[tuple[str, str], str] = {}
        self._written: dict[Path, str] = {}
        self._lock = threading.Lock()

    def token_of(self, namespace: str, account: str) -> str:
        """Returns the token of a service account."""
        with self._lock:
            place = namespace, account
            found = self._accounts.setdefault(place, secrets.token_urlsafe(24))
            self.users[found] = service_account(namespace, account)
        return found

    def admin_file(self) -> Path:
        """Returns the configuration of clients that are the administrator."""
        return self._file("admin", self.token, "default")

    def file_of(self, namespace: str, account: str) -> Path:
        """Returns the configuration of clients that are a service account."""
        token = self.token_of(namespace, account)
        return self._file(f"{namespace}-{account}", token, namespace)

    def _file(self, user: str, token: str, namespace: str) -> Path:
        path, cluster = (
            self._folder / f"{user}.kubeconfig",
            {"server": self._find_url()},
        )
        if self._authority is not None:
            text = base64.b64encode(self._authority.read_bytes()).decode()
            cluster["certificate-authority-data"] = text
        context = {"cluster": "double", "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "double", "context": context}],
            "current-context": "double",
        }
        with self._lock:
            if self._written.get(path) != token:
                # One of an earlier cluster may lie in the folder.
                path.unlink(missing_ok=True)
                path.touch(mode=0o600)
                path.write_text(json.dumps(config, indent=2))  # JSON is YAML too
                self._written[path] = token
        return path
