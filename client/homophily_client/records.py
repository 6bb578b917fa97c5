"""Answers of the service as plain dataclasses, read from messages by field name.

A field of a :class:`Record` is read from the message's field of the same name: timestamps become datetimes, durations
seconds, enums words, repeated fields tuples, and messages the Record declared for them. :func:`named` is for a field
whose name in the message differs, :func:`computed` for one that needs code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field, fields
from datetime import UTC
from typing import Any, ClassVar, Self

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client.labels import class_array
from homophily_client.parameters import to_dict
from homophily_client.words import word


def named(name: str) -> dict[str, str]:
    """Metadata of a dataclass field that has another name in the message: ``field(metadata=named("point_count"))``."""
    return {"name": name}


def computed(read: Callable[[Any], Any]) -> Any:
    """Declare a dataclass field that is computed from the message."""
    return field(metadata={"read": read})


class Record:
    """Base of the dataclasses: knows how to be read from its message."""

    #: The message, whose comments describe fields that the dataclass does not.
    _message_type: ClassVar[type[Message]]

    def __init_subclass__(cls, of: type[Message]) -> None:
        cls._message_type = of
        # Two Records may be of the same message; the first one is used inside others.
        _CONVERSIONS.setdefault(of.DESCRIPTOR.full_name, cls.from_message)

    @classmethod
    def from_message(cls, message: Any) -> Self:
        """Read a message."""
        values = {
            one.name: one.metadata["read"](message) if "read" in one.metadata else _value(message, one)
            for one in fields(cls)  # type: ignore[arg-type]
        }
        return cls(**values)


def _value(message: Any, one: Field[Any]) -> Any:
    name = one.metadata.get("name", one.name)
    descriptor: FieldDescriptor = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if descriptor.is_repeated:
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            return dict(value)
        return tuple(_converted(descriptor, one) for one in value)
    # Annotations are strings, as in every module of this package.
    if str(one.type).endswith("| None"):
        is_message = descriptor.message_type is not None
        is_set = value.ByteSize() > 0 if is_message else not descriptor.has_presence or message.HasField(name)
        if not is_set or value == "":
            return None
    return _converted(descriptor, value)


def _converted(descriptor: FieldDescriptor, value: Any) -> Any:
    if descriptor.enum_type is not None:
        return word(descriptor.enum_type, value)
    if descriptor.message_type is not None:
        return _CONVERSIONS[descriptor.message_type.full_name](value)
    return value


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    Timestamp.DESCRIPTOR.full_name: lambda stamp: stamp.ToDatetime(tzinfo=UTC),
    Duration.DESCRIPTOR.full_name: lambda length: length.ToNanoseconds() / 1e9,
    model_pb2.ClassValues.DESCRIPTOR.full_name: lambda values: tuple(class_array(values).tolist()),
    model_pb2.GraphParameters.DESCRIPTOR.full_name: to_dict,
    model_pb2.SolverParameters.DESCRIPTOR.full_name: to_dict,
    embedding_pb2.EmbeddingParameters.DESCRIPTOR.full_name: to_dict,
}
