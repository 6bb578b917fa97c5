"""The server's TLS: certificates from files, read again when these change, so that a renewal needs no restart.

gRPC asks before every handshake whether there are newer ones. Open connections stay as they are.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc

from homophily_service.contract.errors import FailedPrecondition
from homophily_service.runtime.settings import Settings

_log = logging.getLogger(__name__)

# A key that anybody on the machine can read, or the group can change, is not a secret.
_TOO_OPEN = 0o027


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """The credentials of the port; None without TLS. FailedPrecondition if the files cannot be used."""
    if settings.tls_certificate is None and settings.tls_key is None and settings.tls_client_ca is None:
        return None
    if settings.tls_certificate is None or settings.tls_key is None:
        raise FailedPrecondition("TLS needs both tls_certificate and tls_key")
    certificates = Certificates(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    # It may return None although the types do not say so: nothing has changed.
    newer: Any = certificates.newer
    return grpc.dynamic_ssl_server_credentials(
        certificates.read(), newer, require_client_authentication=settings.tls_client_ca is not None
    )


class Certificates:
    """The files, and which versions of them are in use."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self.certificate, self.key, self.client_ca = certificate, key, client_ca
        self._in_use: tuple[tuple[int, int, int], ...] = ()
        self._failed: tuple[tuple[int, int, int], ...] | None = None
        # Handshakes are made in several threads.
        self._lock = threading.Lock()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """What is in the files now, or FailedPrecondition."""
        try:
            seen = self._versions()
            certificate, key = self.certificate.read_bytes(), self.key.read_bytes()
            client_ca = None if self.client_ca is None else self.client_ca.read_bytes()
            # gRPC would only fail at the first handshake, without a reason.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            if client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:
            # An SSLError is an OSError, and its text does not name the file.
            raise FailedPrecondition(
                f"the TLS files {self.certificate}, {self.key}"
                f"{'' if self.client_ca is None else f', {self.client_ca}'} cannot be used: {error}"
            ) from error
        self._warn_of_open_key()
        self._in_use, self._failed = seen, None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The new contents of the files; None if they have not changed, or cannot be used."""
        with self._lock:
            try:
                seen = self._versions()
                if seen == self._in_use:
                    return None
                configuration = self.read()
            except (FailedPrecondition, OSError) as error:
                # For example, the key of a new certificate is missing. Logged once, tried again at the next handshake.
                versions = self._versions_or_none()
                if versions != self._failed:
                    self._failed = versions
                    _log.error("the TLS files have changed, but the old ones stay in use: %s", error)
                return None
            _log.info("the TLS files have changed; the new ones are in use")
            return configuration

    def _versions(self) -> tuple[tuple[int, int, int], ...]:
        files = (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)
        found = [file.stat() for file in files]
        # If a symbolic link changes, as Kubernetes does with secrets, the inode differs.
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)

    def _versions_or_none(self) -> tuple[tuple[int, int, int], ...]:
        try:
            return self._versions()
        except OSError:
            return ((-1, -1, -1),)

    def _warn_of_open_key(self) -> None:
        mode = os.stat(self.key).st_mode
        if mode & _TOO_OPEN:
            _log.warning("the key %s has mode %03o: only its owner should read it (chmod 600)", self.key, mode & 0o777)


def _no_passphrase() -> str:
    """Raise instead of asking on the terminal."""
    raise ValueError("the key has a passphrase")
