"""The token of a job, and the certificates of its master."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
from collections.abc import Mapping  # noqa: TC003
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.pods import JOB_LABEL
from drivetrain_core import MissingLibraryError
from drivetrain_elastic.extending import make_token

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_DAYS = 825
_Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSecret:
    """What is needed to call the master of a job.

    Args:
        token: Of the job.
        authority: The certificate that vouches for the master's, PEM.
        address: Of the service that the master's certificate names.
        data: All of it, to be written again if somebody deletes it.
        is_new: Whether nobody else has had it yet.
    """

    token: str = field(repr=False)
    authority: str = field(repr=False)
    address: str
    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_new: bool = False


def make_secret(
    name: str, namespace: str, address: str, owner: Mapping[str, Any]
) -> _Item:
    """Returns a secret with a new token and new certificates.

    The key of the authority is forgotten: it never vouches for anything else.

    Args:
        name: Of the secret, and of the master's service.
        namespace: Of both.
        address: Of the service.
        owner: Whom it goes with.

    Raises:
        MissingLibraryError: cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        message = (
            "certificates of masters need cryptography: "
            'pip install "drivetrain-cloud[kubernetes]"'
        )
        raise MissingLibraryError(message) from error
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate(f"{name} authority", authority_key)
    certificate = _certificate(
        name,
        key,
        issuer=(authority.subject, authority_key),
        names=(
            x509.IPAddress(ipaddress.ip_address(address)),
            *(
                x509.DNSName(one)
                for one in (
                    name,
                    f"{name}.{namespace}",
                    f"{name}.{namespace}.svc",
                    f"{name}.{namespace}.svc.cluster.local",
                )
            ),
        ),
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = serialization.Encoding.PEM
    found = {
        "token": make_token().encode(),
        "ca.crt": authority.public_bytes(pem),
        "tls.crt": certificate.public_bytes(pem),
        "tls.key": private,
        "address": address.encode(),
    }
    data = {key: base64.b64encode(one).decode() for key, one in found.items()}
    return secret_item(name, namespace, data, owner)


def secret_item(
    name: str, namespace: str, data: Mapping[str, str], owner: Mapping[str, Any]
) -> _Item:
    """Returns a secret with what is given.

    Args:
        name: Of the secret.
        namespace: Of it.
        data: What it says.
        owner: Whom it goes with.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {JOB_LABEL: str(owner["name"])},
            "ownerReferences": [dict(owner)],
        },
        "data": dict(data),
    }


def read_secret(item: Mapping[str, Any]) -> JobSecret:
    """Returns what a secret says.

    Args:
        item: As the API server gives it.

    Raises:
        KeyError: It is no secret of a job.
        ValueError: What it says is no text.
    """
    data = item.get("data") or {}
    token, authority, address = (
        base64.b64decode(data[key]).decode() for key in ("token", "ca.crt", "address")
    )
    return JobSecret(token=token, authority=authority, address=address, data=data)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    names: tuple[x509.GeneralName, ...] = (),
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = dt.datetime.now(dt.UTC)
    issuer_name, signer = issuer or (subject, key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clock of a node may be behind.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True
        )
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
    return builder.sign(signer, hashes.SHA256())
