"""Frames on a stream between the API and a predictor: a length (4 bytes), a call's number (4 bytes) and a body.

Asked: a line of JSON (the model's path and its graph's digest), then a PredictRequest; or nothing, if the call of this
number is no longer waited for. Answered: S and a PredictResponse, or E and a JobError. Number 0 says that the predictor
is ready, or, with a body, how many models it has had in memory and how many it has had to load since it last told.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache

_HEAD = struct.Struct("<II")
READY = 0
MOST_CALLS = 0xFFFFFFFF
LOOKS = struct.Struct("<II")
MODELS = 1000  # whose lines are remembered
SUCCESS, ERROR = b"S", b"E"
DROPPED = b""


@lru_cache(MODELS)
def head(path: str, graph: str) -> bytes:
    """The line that names a model."""
    return json.dumps([path, graph]).encode() + b"\n"


@lru_cache(MODELS)
def read_head(line: bytes) -> tuple[str, str]:
    """The path and the graph's digest in such a line."""
    path, graph = json.loads(line)
    return path, graph


def frame(number: int, body: bytes) -> bytes:
    """One frame."""
    return _HEAD.pack(len(body), number) + body


def take_frames(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Numbers and bodies of the whole frames at the buffer's start, which are taken out of it."""
    frames = []
    place = 0
    while len(buffer) - place >= _HEAD.size:
        length, number = _HEAD.unpack_from(buffer, place)
        begin = place + _HEAD.size
        if len(buffer) - begin < length:
            break
        place = begin + length
        frames.append((number, bytes(buffer[begin:place])))
    del buffer[:place]
    return frames
