"""The client, put together."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from homophily_service.client.connection import Connection
from homophily_service.client.embeddings import Embeddings
from homophily_service.client.tls import channel_credentials
from homophily_service.names import DEFAULT_PROJECT


class Client(Embeddings):
    """A connection to a Homophily server. Threads may share it; other processes make their own.

    Parameters
    ----------
    target : the server's address, host:port.
    token : a bearer token, if the server wants one.
    project : the project of short names.
    timeout : seconds that an answer may take. Uploads, watches and results take what they take.
    patience : seconds for which a server that has answered before is waited for while it is away, restarting for
        example, by uploads, watches, results and the start of jobs. Everything else gives up after five.
    tls : speak TLS, and trust the CAs that gRPC brings along.
    ca : a PEM file of the CAs to trust instead; means ``tls``.
    certificate, key : PEM files of what to show a server that asks for it (mutual TLS); mean ``tls``.
    credentials : instead of these four, such as ``grpc.ssl_channel_credentials()``.
    retry_full_queue : also wait, patiently, for a place in a full queue, instead of raising LimitExceeded.

    Whatever has a name may be given by its short name («digits»), its full name («projects/default/models/digits»),
    or by what the client answered before (a Dataset, Model, Embedding or JobHandle).

    >>> import numpy as np
    >>> from homophily_service.client import Client
    >>> client = Client("localhost:50051")
    >>> X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (100, 2)) for place in (-5.0, 5.0)])
    >>> y = np.full(200, -1)
    >>> y[[0, 199]] = 0, 1
    >>> model = client.fit(X, y).result()
    >>> client.read_solution(model).labels[[1, 2, 150]].tolist()
    [0, 0, 1]
    >>> client.predict(model, [[-4.0, -4.0], [6.0, 4.0]]).labels.tolist()
    [0, 1]
    >>> client.close()
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        project: str = DEFAULT_PROJECT,
        timeout: float = 30.0,
        patience: float = 60.0,
        tls: bool = False,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        retry_full_queue: bool = False,
    ) -> None:
        if credentials is None:
            credentials = channel_credentials(tls=tls, ca=ca, certificate=certificate, key=key)
        elif tls or ca or certificate or key:
            raise ValueError("give either credentials, or tls, ca, certificate and key")
        connection = Connection(target, token=token, credentials=credentials, timeout=timeout, patience=patience)
        super().__init__(connection, project)
        self.retry_full_queue = retry_full_queue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on."""
        self._connection.close()
