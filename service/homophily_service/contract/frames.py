"""Messages on a stream between the API and a predictor process: a length in 4 bytes, then the message."""

from __future__ import annotations

import struct

from google.protobuf.message import Message

_LENGTH = struct.Struct("<I")


def frame(message: Message) -> bytes:
    """A message, preceded by its length."""
    body = message.SerializeToString()
    return _LENGTH.pack(len(body)) + body


def take_frames(buffer: bytearray) -> list[bytes]:
    """Remove the complete messages at the start of a buffer, and return them."""
    frames = []
    place = 0
    while len(buffer) - place >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, place)
        begin = place + _LENGTH.size
        if len(buffer) - begin < length:
            break
        place = begin + length
        frames.append(bytes(buffer[begin:place]))
    del buffer[:place]
    return frames
