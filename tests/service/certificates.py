"""Certificates for tests: CAs and certificates that they sign, made on demand."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key."""

    signed: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.signed.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def number(self) -> int:
        return self.signed.serial_number

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The certificate and the key as files; each is replaced atomically, as tools that renew certificates do."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        for path, data in zip(paths, (self.pem, self.key_pem), strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            fresh.chmod(0o600)
            fresh.replace(path)
        return paths


def authority(name: str) -> Certificate:
    """A CA."""
    return _make(name, None, hours=24, is_authority=True)


def signed_by(issuer: Certificate, name: str, hours: float = 24) -> Certificate:
    """A certificate for this machine; with negative ``hours`` it has expired."""
    return _make(name, issuer, hours=hours, is_authority=False)


def _make(name: str, issuer: Certificate | None, *, hours: float, is_authority: bool) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.signed.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 48 * _HOUR)
        .not_valid_after(now + hours * _HOUR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return Certificate(builder.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)
