"""TLS credentials of the client."""

from __future__ import annotations

from pathlib import Path

import grpc


def channel_credentials(
    *, tls: bool, ca: str | Path | None, certificate: str | Path | None, key: str | Path | None
) -> grpc.ChannelCredentials | None:
    """Return credentials from PEM files; None for a plain connection. Naming any file implies TLS."""
    if not (tls or ca or certificate or key):
        return None
    if (certificate is None) != (key is None):
        raise ValueError("a client's certificate and its key must be given together")
    return grpc.ssl_channel_credentials(
        root_certificates=None if ca is None else Path(ca).read_bytes(),
        private_key=None if key is None else Path(key).read_bytes(),
        certificate_chain=None if certificate is None else Path(certificate).read_bytes(),
    )
