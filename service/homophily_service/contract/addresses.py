"""Addresses of files that datasets are made from, and the prefixes of addresses that a project may use.

An address is taken only in its plain form, in which it means one thing to every program that reads it: no user, query,
percent-encoding, backslash, empty segment, "." or "..". So a comparison of segments says whether it is below a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from homophily_service.contract.errors import InvalidRequest

#: Endings of the files that can be read.
FORMATS = (".parquet", ".arrow", ".feather", ".csv", ".tsv", ".npy")
BUCKETS = ("s3", "gs", "az")
WEB, FOLDER = "https", "file"
FORMS = "s3://bucket/…, gs://bucket/…, az://container/…, https://host/… or file:///folder/…"
LONGEST_ADDRESS = 1024

_ADDRESS = re.compile(r"(s3|gs|az|https|file)://([^/]*)(?:/(.*))?", re.DOTALL)
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
_HOST = re.compile(r"([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::([1-9][0-9]{0,4}))?", re.ASCII)
_REFUSED = re.compile(r"[%\\?#@\[\]{}<>|^`\"\x00-\x1f\x7f-\x9f]")
HTTPS_PORT = 443


@dataclass(frozen=True)
class Address:
    """An address in its parts."""

    scheme: str
    #: The bucket, container or host with its port; empty for a folder of the server.
    place: str
    #: Without the slash before it; empty, or with one at its end, for a folder.
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}/{self.path}"

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder rather than a file."""
        return not self.path or self.path.endswith("/")

    @property
    def is_pattern(self) -> bool:
        """Whether its last part matches several files."""
        return "*" in self.path

    @property
    def folder(self) -> str:
        """The folder that it is, or that the files are in, without a slash at the end."""
        return self.path.rpartition("/")[0]

    @property
    def host(self) -> str:
        """The name of a host, without its port."""
        return self.place.rpartition(":")[0] if re.search(r":\d+$", self.place) else self.place

    @property
    def port(self) -> int:
        """The port of a host."""
        found = re.search(r":(\d+)$", self.place)
        return int(found[1]) if found else HTTPS_PORT

    def is_below(self, prefix: Address) -> bool:
        """Whether it is what a prefix names, or is in that folder."""
        inner, outer = self.path.rstrip("/"), prefix.path.rstrip("/")
        same_place = (self.scheme, self.place) == (prefix.scheme, prefix.place)
        return same_place and (not outer or inner == outer or inner.startswith(f"{outer}/"))

    def chosen(self, paths: Iterable[str]) -> list[str]:
        """Of the files in its folder, those that it means, sorted; hidden ones, such as _SUCCESS, are none."""
        found = [
            path
            for path in paths
            if path.endswith(FORMATS)
            and not any(part.startswith((".", "_")) for part in path[len(self.folder) :].strip("/").split("/"))
        ]
        if self.is_pattern:
            found = [path for path in found if path.rpartition("/")[0] == self.folder]
            found = [path for path in found if fnmatchcase(path, self.path)]
        return sorted(found)


def suffix_of(path: str) -> str:
    """The ending of a path by which its reader is chosen."""
    return next((suffix for suffix in FORMATS if path.lower().endswith(suffix)), "")


def parse_address(text: str, field: str) -> Address:
    """Read the address of files, or refuse it."""
    address = _parse(text, field)
    last = address.path.rpartition("/")[2]
    if "*" in address.path[: len(address.path) - len(last)]:
        raise InvalidRequest(field, f"must have * in its last part only; got {text!r}")
    if address.scheme == WEB and (address.is_folder or address.is_pattern):
        raise InvalidRequest(field, "must be one file: folders cannot be listed by https")
    if not address.is_folder and not address.path.endswith(FORMATS):
        raise InvalidRequest(
            field, f"must end with one of {', '.join(FORMATS)}, or with / for all such files in a folder; got {text!r}"
        )
    return address


def parse_prefix(text: str) -> Address:
    """Read a prefix of addresses from the settings; raises ValueError."""
    try:
        prefix = _parse(text, "prefix")
    except InvalidRequest as error:
        raise ValueError(f"{text!r} is no prefix of addresses: {error.message}") from None
    if "*" in prefix.path or (prefix.scheme == FOLDER and not prefix.path.strip("/")):
        raise ValueError(f"{text!r} is no prefix of addresses: it must be a folder or a file, without *")
    return prefix


def _parse(text: str, field: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None or len(text) > LONGEST_ADDRESS:
        raise InvalidRequest(field, f"must be {FORMS}, of at most {LONGEST_ADDRESS} letters; got {text[:200]!r}")
    scheme, place, path = found[1], found[2], found[3] or ""
    if scheme in BUCKETS and not _BUCKET.fullmatch(place):
        raise InvalidRequest(field, f"must have the plain name of a bucket after {scheme}://; got {place[:100]!r}")
    if scheme == WEB:
        host = _HOST.fullmatch(place)
        if host is None or (host[2] and int(host[2]) > 65535):
            raise InvalidRequest(field, f"must have a host in small letters after https://; got {place[:100]!r}")
        place = host[1] if host[2] in (None, str(HTTPS_PORT)) else place
    if scheme == FOLDER and place:
        raise InvalidRequest(field, f"must begin with file:///; got {text[:200]!r}")
    segments = path.removesuffix("/").split("/") if path else []
    refused = _REFUSED.search(path)
    if refused or any(segment.strip() in ("", ".", "..") for segment in segments):
        what = repr(refused[0]) if refused else "an empty segment, . or .."
        raise InvalidRequest(field, f"must be written plainly; got {what} in {text[:200]!r}")
    return Address(scheme, place, path)
