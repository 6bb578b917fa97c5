"""Which addresses a project may use, and the place that an address is in."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from homophily_service.contract.addresses import BUCKETS, FOLDER, WEB, Address, parse_address, parse_prefix
from homophily_service.contract.errors import PermissionDenied
from homophily_service.runtime.settings import Settings
from homophily_service.storage.elsewhere.buckets import BucketPlace
from homophily_service.storage.elsewhere.folders import FolderPlace
from homophily_service.storage.elsewhere.places import Place
from homophily_service.storage.elsewhere.web import WebPlace


def allowed_address(
    settings: Settings, project: str, text: str, field: str = "address"
) -> tuple[Address, list[Address]]:
    """Read an address that the project may use; returns also the prefixes that the operator allows the project.

    InvalidRequest if it is written wrongly, PermissionDenied if it is not allowed.
    """
    address = parse_address(text, field)
    prefixes = [parse_prefix(prefix) for prefix in settings.addresses_of(project)]
    if not any(map(address.is_below, prefixes)):
        listed = ", ".join(map(str, prefixes)) or "none"
        raise PermissionDenied(
            f"{field}: project {project} may not read {address}; the setting dataset_addresses allows it: {listed}",
            reason="ADDRESS_NOT_ALLOWED",
        )
    if _is_ours(settings, address):
        raise PermissionDenied(
            f"{field}: {address} is where the service keeps what belongs to all projects", reason="ADDRESS_NOT_ALLOWED"
        )
    return address, prefixes


def open_place(settings: Settings, project: str, text: str) -> tuple[Address, Place]:
    """The place of an address, which is checked again: settings may have changed since the job was submitted."""
    address, prefixes = allowed_address(settings, project, text)
    if address.scheme in BUCKETS:
        return address, BucketPlace(address)
    if address.scheme == WEB:
        return address, WebPlace(address, prefixes)
    # The innermost folder that is allowed.
    roots = [prefix for prefix in prefixes if address.is_below(prefix)]
    return address, FolderPlace(address, max(roots, key=lambda root: len(root.path)))


def _is_ours(settings: Settings, address: Address) -> bool:
    """Whether an address is in the service's own store or data directory, or contains one of them."""
    blobs = urlsplit(settings.blobs)
    if address.scheme in BUCKETS:
        if (blobs.scheme, blobs.netloc) != (address.scheme, address.place):
            return False
        mine, theirs = blobs.path.strip("/"), address.folder if address.is_pattern else address.path.strip("/")
        return f"{theirs}/".startswith(f"{mine}/") or f"{mine}/".startswith(f"{theirs}/") or not mine or not theirs
    if address.scheme != FOLDER:
        return False
    folder = Path(f"/{address.folder if address.is_pattern else address.path}").resolve()
    own = [settings.data_dir.resolve()]
    if blobs.scheme in ("", "file"):
        own.append(Path(blobs.path or settings.blobs).resolve())
    return any(folder.is_relative_to(one) or one.is_relative_to(folder) for one in own)
