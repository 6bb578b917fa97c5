"""The words for the values of the protos' enums: ``EDGE_WEIGHTS_SELF_TUNING`` is "self-tuning"."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeAlias

#: An enum's descriptor, which protobuf types in two ways.
EnumDescriptor: TypeAlias = Any
# Values that the core writes as booleans.
_BOOLEANS = {"LINK_CLOSURE_NONE": False, "LINK_CLOSURE_TRANSITIVE": True}
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@cache
def words(enum: EnumDescriptor) -> dict[Any, int]:
    """Return the number of each word of an enum, without UNSPECIFIED.

    >>> from homophily_client._pb import model_pb2
    >>> words(model_pb2.Multiclass.DESCRIPTOR)
    {'vector': 1, 'one-vs-rest': 2}
    """
    prefix = f"{_CAPITAL.sub('_', enum.name).upper()}_"
    return {
        _BOOLEANS.get(value.name, value.name.removeprefix(prefix).lower().replace("_", "-")): value.number
        for value in enum.values
        if value.number
    }


@cache
def _by_number(enum: EnumDescriptor) -> dict[int, Any]:
    return {number: word for word, number in words(enum).items()}


def word(enum: EnumDescriptor, number: int) -> Any:
    """Return the word for a number: "unspecified" for 0 and for numbers of a newer server."""
    return _by_number(enum).get(number, "unspecified")


def number(enum: EnumDescriptor, value: Any, name: str) -> int:
    """Return the number of a word that was given as the argument ``name``."""
    known = words(enum)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}. Got {value!r} instead.")
    return known[value]
