"""Files on the web, by https.

No request leaves for an address inside the operator's network: the name is resolved here, every address that it has is
checked, and the connection goes to one that was checked. Redirects are refused, and so are servers that do not answer
ranges or do not say which state of the file an answer is of.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote

from homophily_service.contract.addresses import WEB, Address
from homophily_service.contract.errors import FailedPrecondition, NotFound, PermissionDenied, Unavailable
from homophily_service.storage.elsewhere.places import Place, SourceFile, changed

CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
# IPv4 inside IPv6, by which a translator in the network may reach it (RFC 6052).
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
# All of IPv6 that is assigned to the open internet. Other parts are local, or lead through translators to any IPv4.
_ASSIGNED = ipaddress.ip_network("2000::/3")
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: IPAddress) -> bool:
    """Whether an address is of the open internet: not loopback, link-local, private, reserved or multicast.

    >>> is_public(ipaddress.ip_address("169.254.169.254")), is_public(ipaddress.ip_address("::ffff:10.0.0.1"))
    (False, False)
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in _ASSIGNED:
            return False
    return address.is_global and not address.is_multicast


class WebPlace(Place):
    """One file of a server. Of addresses that are not public, only those that ``allowed`` names are connected to."""

    def __init__(self, address: Address, allowed: Collection[Address]) -> None:
        self.address, self._allowed = address, allowed
        self._context = ssl.create_default_context()

    def find(self) -> list[SourceFile]:
        """See Place."""
        with self._get(0, 1) as (response, size):
            response.read(1)
            return [SourceFile(self.address.path, size, _tag(response, str(self.address)))]

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        """See Place."""
        with self._get(start, stop) as (response, size):
            if size != file.size or _tag(response, str(self.address)) != file.tag:
                raise changed(str(self.address))
            content = response.read(stop - start)
        if len(content) != stop - start:
            raise Unavailable(f"{self.address}: the answer broke off")
        return content

    @contextmanager
    def _get(self, start: int, stop: int) -> Iterator[tuple[HTTPResponse, int]]:
        """Ask for a range; yields the answer, and the size of the whole file."""
        try:
            with closing(_Connection(self.address, self._addresses(), self._context)) as connection:
                headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
                connection.request("GET", quote(f"/{self.address.path}", safe="/~=+,()!*'$:&;"), headers=headers)
                response = connection.getresponse()
                yield response, self._checked(response, start)
        except ssl.SSLCertVerificationError as error:
            raise FailedPrecondition(
                f"{self.address}: its certificate is not trusted: {error.verify_message}", reason="NOT_TRUSTED"
            ) from error
        except (OSError, HTTPException) as error:
            raise Unavailable(f"{self.address}: the server does not answer: {type(error).__name__}") from error

    def _checked(self, response: HTTPResponse, start: int) -> int:
        """Refuse anything but a part of the file that begins at ``start``; returns the size of the whole."""
        status = response.status
        if status in (404, 410):
            raise NotFound(f"{self.address}: there is no such file")
        if 300 <= status < 400:
            raise FailedPrecondition(f"{self.address}: it redirects; give the address it leads to", reason="REDIRECT")
        if status in (401, 403):
            raise FailedPrecondition(f"{self.address}: the server refuses it to us", reason="NOT_READABLE")
        if status == 429 or status >= 500:
            raise Unavailable(f"{self.address}: the server answers with status {status}")
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if status != 206 or found is None or int(found[1]) != start:
            raise FailedPrecondition(
                f"{self.address}: the server does not answer ranges of the file (status {status}), or it is empty",
                reason="NO_RANGES",
            )
        return int(found[3])

    def _addresses(self) -> list[tuple[Any, ...]]:
        """The socket addresses of the host; PermissionDenied if one of them is not public and not allowed."""
        host, port = self.address.host.strip("[]"), self.address.port
        found = [(family, sockaddr) for family, *_, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        for number in (str(sockaddr[0]).partition("%")[0] for _, sockaddr in found):
            if not is_public(ipaddress.ip_address(number)) and not self._names(number):
                raise PermissionDenied(
                    f"{self.address}: its host is inside a private network, which the setting dataset_addresses does "
                    "not name",
                    reason="PRIVATE_ADDRESS",
                )
        return found

    def _names(self, number: str) -> bool:
        """Whether the operator has named this address itself, with this port."""
        hosts = {number, f"[{number}]"}
        return any(
            prefix.scheme == WEB and prefix.host in hosts and prefix.port == self.address.port
            for prefix in self._allowed
        )


class _Connection(HTTPSConnection):
    """A connection to addresses that were checked, instead of what the name means by now."""

    def __init__(self, address: Address, addresses: list[tuple[Any, ...]], context: ssl.SSLContext) -> None:
        super().__init__(address.host.strip("[]"), address.port, timeout=READ_SECONDS, context=context)
        self._addresses, self._tls = addresses, context

    def connect(self) -> None:
        """See HTTPSConnection."""
        failure: OSError = OSError("the name has no address")
        for family, sockaddr in self._addresses:
            plain = socket.socket(family, socket.SOCK_STREAM)
            try:
                plain.settimeout(CONNECT_SECONDS)
                plain.connect(sockaddr)
                plain.settimeout(READ_SECONDS)
                self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
                return
            except OSError as error:
                plain.close()
                failure = error
        raise failure


def _tag(response: HTTPResponse, shown: str) -> str:
    found = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if not found:
        raise FailedPrecondition(
            f"{shown}: the server sends neither ETag nor Last-Modified, so that a change would go unnoticed",
            reason="NO_ETAG",
        )
    return found[:1000]
