"""A certificate authority of the double's own, and the certificate of its server."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cluster_double import times
from drivetrain_core import MissingLibraryError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Certificates", "make_certificates"]


class Certificates(NamedTuple):
    """Where certificates lie.

    Attributes:
        authority: What clients trust, PEM.
        certificate: Of the server, PEM.
        key: Of the server, PEM.
    """

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, *, days: int = 1) -> Certificates:
    """Makes an authority and a certificate for this machine.

    Args:
        folder: Where to write them; only its owner should be able to read it.
        days: How long they are good; a negative number makes them expired.

    Raises:
        MissingLibraryError: The library cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        message = (
            "TLS of the double needs the library cryptography: "
            "pip install integration/kubernetes"
        )
        raise MissingLibraryError(message) from error
    begin = times.now() - timedelta(days=max(1, 1 - days * 2))
    end = times.now() + timedelta(days=days)
    own_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(
        text: str, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(text))
            .issuer_name(named("drivetrain double"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )

    own = own_key.public_key()
    signs = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        builder("drivetrain double", own)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        .sign(own_key, hashes.SHA256())
    )
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    names = [x509.DNSName(n) for n in ("localhost", "kubernetes.default.svc")]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(own)
    certificate = (
        builder("kube-apiserver", key.public_key())
        .add_extension(
            x509.SubjectAlternativeName([*addresses, *names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(identifier, critical=False)
        .sign(own_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    found = Certificates(*(folder / name for name in ("ca.crt", "tls.crt", "tls.key")))
    found.authority.write_bytes(authority.public_bytes(pem))
    found.certificate.write_bytes(certificate.public_bytes(pem))
    found.key.touch(mode=0o600)
    found.key.write_bytes(
        key.private_bytes(
            pem,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return found
