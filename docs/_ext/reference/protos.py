"""The gRPC interface: calls, messages, fields and enums with the comments of the .proto files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from grpc_tools import protoc

from reference.markdown import cell, described

PROTOS = Path(__file__).parents[3] / "proto"
PACKAGE = "homophily.v1"
# Numbers of fields in descriptor.proto, of which the paths to comments consist.
MESSAGE, ENUM, SERVICE, METHOD, FIELD, NESTED, NESTED_ENUM, VALUE = 4, 5, 6, 2, 2, 3, 4, 2

Path_ = tuple[int, ...]


class File:
    """A .proto file and its comments."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self.comments = {
            tuple(location.path): (location.leading_comments or location.trailing_comments).strip()
            for location in file.source_code_info.location
        }

    def comment(self, path: Path_, what: str) -> str:
        """What the comment says; a warning if there is none."""
        return described(self.comments.get(path), f"{what} in {self.file.name}")


@cache
def files() -> tuple[File, ...]:
    """The protos of the service, compiled with their comments."""
    with tempfile.TemporaryDirectory() as folder:
        output, (included,) = Path(folder, "set"), (Path(one) for one in grpc_tools.__path__)
        names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTOS}",
                f"-I{included / '_proto'}",
                f"--descriptor_set_out={output}",
                "--include_source_info",
                *names,
            ]
        )
        assert code == 0, "protoc failed"
        return tuple(map(File, FileDescriptorSet.FromString(output.read_bytes()).file))


def comments() -> dict[str, str]:
    """What the protos say about each field, by ``message.field`` without the package."""
    found = {}
    for file in files():
        for path, name, message in _messages(file.file):
            for number, field in enumerate(message.field):
                found[f"{name}.{field.name}"] = file.comments.get((*path, FIELD, number), "")
    return found


def generate() -> str:
    """The whole interface."""
    parts = []
    for file in files():
        for number, service in enumerate(file.file.service):
            parts += [f"## {service.name}", "", file.comment((SERVICE, number), service.name), ""]
            for position, method in enumerate(service.method):
                meaning = file.comment((SERVICE, number, METHOD, position), method.name)
                parts += [f"`{method.name}`", f": {cell(meaning)}\\", f"  {_takes(method)} → {_returns(method)}", ""]
    for file in files():
        if not file.file.message_type and not file.file.enum_type:
            continue
        parts += [f"## {Path(file.file.name).name}", ""]
        for path, name, message in _messages(file.file):
            parts += _message(file, path, name, message)
        for path, name, enum in _enums(file.file):
            parts += _enum(file, path, name, enum)
    return "\n".join(parts)


def _takes(method: MethodDescriptorProto) -> str:
    return ("stream of " if method.client_streaming else "") + _linked(method.input_type)


def _returns(method: MethodDescriptorProto) -> str:
    return ("stream of " if method.server_streaming else "") + _linked(method.output_type)


def _messages(file: FileDescriptorProto) -> Iterator[tuple[Path_, str, DescriptorProto]]:
    for number, message in enumerate(file.message_type):
        yield (MESSAGE, number), message.name, message
        for inner, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield (MESSAGE, number, NESTED, inner), f"{message.name}.{nested.name}", nested


def _enums(file: FileDescriptorProto) -> Iterator[tuple[Path_, str, EnumDescriptorProto]]:
    for number, enum in enumerate(file.enum_type):
        yield (ENUM, number), enum.name, enum
    for number, message in enumerate(file.message_type):
        for inner, enum in enumerate(message.enum_type):
            yield (MESSAGE, number, NESTED_ENUM, inner), f"{message.name}.{enum.name}", enum


def _message(file: File, path: Path_, name: str, message: DescriptorProto) -> list[str]:
    parts = [f"({_anchor(name)})=", f"### {name}", "", file.comment(path, name), ""]
    if not message.field:
        return parts
    parts += ["| Field | Type | Meaning |", "|---|---|---|"]
    for number, field in enumerate(message.field):
        meaning = file.comment((*path, FIELD, number), f"{name}.{field.name}")
        if field.HasField("oneof_index") and not field.proto3_optional:
            meaning += f" (one of `{message.oneof_decl[field.oneof_index].name}`)"
        parts.append(f"| `{field.name}` = {field.number} | {_type(field, message)} | {cell(meaning)} |")
    return [*parts, ""]


def _enum(file: File, path: Path_, name: str, enum: EnumDescriptorProto) -> list[str]:
    parts = [f"({_anchor(name)})=", f"### {name}", "", file.comment(path, name), "", "| Value | Meaning |", "|---|---|"]
    for number, value in enumerate(enum.value):
        meaning = file.comment((*path, VALUE, number), f"{name}.{value.name}")
        parts.append(f"| `{value.name}` = {value.number} | {cell(meaning)} |")
    return [*parts, ""]


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entries = {f".{PACKAGE}.{message.name}.{one.name}": one for one in message.nested_type if one.options.map_entry}
    if field.type_name in entries:
        key, value = entries[field.type_name].field
        return f"map of {_plain(key)} to {_plain(value)}"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {_plain(field)}"
    return f"optional {_plain(field)}" if field.proto3_optional else _plain(field)


def _plain(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _linked(field.type_name)
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def _linked(type_name: str) -> str:
    name = type_name.removeprefix(f".{PACKAGE}.")
    return f"`{name.lstrip('.')}`" if name == type_name else f"[{name}](#{_anchor(name)})"


def _anchor(name: str) -> str:
    return f"message-{name.lower().replace('.', '-')}"
