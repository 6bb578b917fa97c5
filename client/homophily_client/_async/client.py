"""The client."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from homophily_client._async.connection import AsyncConnection
from homophily_client._async.embeddings import AsyncEmbeddings
from homophily_client._pb import server_pb2
from homophily_client.names import DEFAULT_PROJECT
from homophily_client.results import ServerInfo
from homophily_client.tls import channel_credentials


class AsyncClient(AsyncEmbeddings):
    """A connection to a Homophily server.

    Everything with a name may be given by its short name ("digits"), by its full name
    ("projects/default/models/digits"), or as the Dataset, Model, Embedding or job handle that the client returned.
    Every method that makes a single call takes a ``timeout`` of its own.

    Parameters
    ----------
    target : str
        The server's address, host:port.
    token : str, optional
        A bearer token, if the server requires one.
    project : str, default="default"
        The project of short names.
    timeout : float, default=30.0
        Seconds that an answer may take. It does not limit uploads, watches and results.
    patience : float, default=60.0
        Seconds for which uploads, watches, results and the start of jobs wait for a server that has answered before
        and cannot be reached now, for example while it restarts. Other calls give up after five seconds.
    tls : bool, default=False
        Use TLS, and trust the CAs that come with gRPC.
    ca : path, optional
        PEM file of the CAs to trust instead; implies ``tls``.
    certificate, key : path, optional
        PEM files to show a server that asks for them (mutual TLS); imply ``tls``.
    credentials : grpc.ChannelCredentials, optional
        Instead of these four.
    retry_full_queue : bool, default=False
        Also wait for a place in a full queue, within ``patience``, instead of raising LimitExceeded.
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
        connection = AsyncConnection(target, token=token, credentials=credentials, timeout=timeout, patience=patience)
        super().__init__(connection, project)
        self.retry_full_queue = retry_full_queue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return the server's version."""
        request = server_pb2.GetServerInfoRequest()
        return ServerInfo.from_message(await self._connection.call("GetServerInfo", request, timeout=timeout))

    async def close(self) -> None:
        """Close the connection; jobs continue."""
        await self._connection.close()
