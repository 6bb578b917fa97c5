"""Paths in the store of arrays. The janitor moves or removes nothing at any other path.

datasets/{project}/{dataset}/{token}     models/{project}/{job}/{token}
graphs/{digest}/{token}                  embeddings/{project}/{job}/{token}
quarantine/{seconds}/{path}              an object moved out of its place, and when, by the database's clock
store/…                                  which database the store belongs to (:mod:`.identity`)
"""

from __future__ import annotations

import re
from typing import NamedTuple

QUARANTINE, IDENTITY = "quarantine", "store"

_ID = r"[a-z0-9][a-z0-9-]{0,63}"
_OBJECT = re.compile(rf"(?:(?:datasets|models|embeddings)/{_ID}|graphs)/{_ID}/({_ID})", re.ASCII)
# Random, and so long that no other program has such names by chance.
_TOKEN = re.compile(r"[0-9a-f]{24}|[0-9a-f]{32}", re.ASCII)
_QUARANTINED = re.compile(rf"{QUARANTINE}/([0-9]{{1,15}})/(.+)", re.ASCII)
_IDENTITY = re.compile(rf"{IDENTITY}/(?:identity|contested/[a-z0-9-]{{1,64}}|generations/[0-9]{{1,20}})", re.ASCII)


class Quarantined(NamedTuple):
    """Where an object was, and since when it is in quarantine."""

    since: int
    path: str


def is_object(path: str) -> bool:
    """Whether the path may be that of one of our objects."""
    return _OBJECT.fullmatch(path) is not None


def is_unfinished(path: str) -> bool:
    """Whether files without a manifest in this folder are what a killed process of ours left."""
    place = _OBJECT.fullmatch(path)
    return place is not None and _TOKEN.fullmatch(place[1]) is not None


def is_identity(path: str) -> bool:
    """Whether the path is part of the store's identity."""
    return _IDENTITY.fullmatch(path) is not None


def quarantine_path(path: str, since: float) -> str:
    """The path in quarantine of an object that is moved there at this time."""
    return f"{QUARANTINE}/{int(since)}/{path}"


def quarantined(path: str) -> Quarantined | None:
    """Read a path in quarantine; None if it is not one."""
    found = _QUARANTINED.fullmatch(path)
    return Quarantined(int(found[1]), found[2]) if found and is_object(found[2]) else None
