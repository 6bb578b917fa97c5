"""Comments of the protos: what they call required is refused without, and what only the server sends says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from homophily_client._pb import job_pb2

from .fuzz import DESCRIPTOR, Calls, Fuzzer
from .serving import Service

PROTOS = Path(__file__).parents[2] / "proto"
RESOURCES = ("Dataset", "Embedding", "Job", "Model")
# Some things are looked at before the field: whether there is a tracking server, or another upload of this id.
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS)
# Numbers of fields in descriptor.proto, of which the paths of comments are made.
FIELDS, ONEOFS = 2, 8
NUMBER_OF_THINGS = re.compile(r"\b[Tt]he number of (?!the |each )")
# Other names of numbers, which proto/README.md lists.
OTHER_NUMBERS = re.compile(r"max_|.*_bytes$|.*_position$|count$|total$")


@pytest.fixture(scope="module")
def comments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The comments of messages, fields and oneofs, by "Message" and "Message.field"."""
    path = tmp_path_factory.mktemp("protos") / "set.binpb"
    well_known = Path(protoc.__file__).parent / "_proto"
    sources = [str(source) for source in PROTOS.glob("homophily/v1/*.proto")]
    options = [f"-I{PROTOS}", f"-I{well_known}", "--include_source_info", f"--descriptor_set_out={path}"]
    assert protoc.main(["protoc", *options, *sources]) == 0
    found: dict[str, str] = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        for location in file.source_code_info.location:
            match list(location.path):
                case [4, message]:
                    found[file.message_type[message].name] = location.leading_comments.strip()
                case [4, message, kind, number] if kind in (FIELDS, ONEOFS):
                    holder = file.message_type[message]
                    part: Any = holder.field if kind == FIELDS else holder.oneof_decl
                    found[f"{holder.name}.{part[number].name}"] = location.leading_comments.strip()
    return found


def reachable(roots: list[Any]) -> set[str]:
    """The names of messages and of those inside them."""
    found: dict[str, Any] = {}
    while roots:
        message = roots.pop()
        if message.full_name.startswith("homophily.") and message.name not in found:
            found[message.name] = message
            roots += [field.message_type for field in message.fields if field.message_type is not None]
    return set(found)


def test_what_only_the_server_sends_is_marked(comments: dict[str, str]) -> None:
    sent = reachable([method.input_type for method in DESCRIPTOR.methods])
    answers = {method.output_type.name for method in DESCRIPTOR.methods}
    only_answered = reachable([method.output_type for method in DESCRIPTOR.methods]) - sent - answers
    assert only_answered.issuperset(RESOURCES)
    entries = {name for name in only_answered if name.endswith("Entry")}
    for name in only_answered - entries:
        if name not in RESOURCES:
            assert comments[name].endswith("Output only."), name
    fields = {name: text for name, text in comments.items() if "." in name}
    of_resources = {name: text for name, text in fields.items() if name.partition(".")[0] in RESOURCES}
    # Of a oneof, the oneof itself is marked.
    outcomes = {f"Job.{field.name}" for field in job_pb2.Job.DESCRIPTOR.oneofs_by_name["outcome"].fields}
    assert {name for name, text in of_resources.items() if not text.startswith("Output only.")} == outcomes


def test_a_number_of_things_that_the_server_sends_is_called_a_count(comments: dict[str, str]) -> None:
    sent = reachable([method.input_type for method in DESCRIPTOR.methods])
    numbers = {name for name, text in comments.items() if NUMBER_OF_THINGS.search(text) and "." in name}
    answered = {name.partition(".")[2] for name in numbers if name.partition(".")[0] not in sent}
    assert {name for name in answered if not OTHER_NUMBERS.match(name)} == {
        name for name in answered if name.endswith(("_count", "_counts"))
    }
    assert len(answered) > 15


def required(message: Any, comments: dict[str, str]) -> Iterator[tuple[str, Any, str]]:
    """What is required and set in a message and in those inside it: its name, the message that has it, the field."""
    for field, value in message.ListFields():
        name = f"{message.DESCRIPTOR.name}.{field.name}"
        oneof = field.containing_oneof
        of_oneof = comments.get(f"{message.DESCRIPTOR.name}.{oneof.name}", "") if oneof is not None else ""
        if comments.get(name, "").startswith("Required.") or of_oneof.startswith("Required."):
            yield name, message, field.name
        if field.message_type is not None and field.message_type.full_name.startswith("homophily."):
            for inner in value if field.is_repeated else [value]:
                if hasattr(inner, "ListFields"):
                    yield from required(inner, comments)


def test_what_is_required_is_refused_without(service: Service, comments: dict[str, str]) -> None:
    fuzzer, calls = Fuzzer(service.project(), 0), Calls(service.channel())
    checked: set[str] = set()
    accepted: dict[str, str] = {}
    for method, requests in fuzzer.valid.items():
        for messages in requests:
            for place, message in enumerate(messages):
                for number, (name, _, _) in enumerate(required(message, comments)):
                    changed = type(message)()
                    changed.CopyFrom(message)
                    _, holder, field = list(required(changed, comments))[number]
                    holder.ClearField(field)
                    sent = [one.SerializeToString() for one in (*messages[:place], changed, *messages[place + 1 :])]
                    call = calls.begin(method, sent)
                    if calls.code(method, call) not in REFUSED:
                        accepted[f"{method}: {name}"] = call.details()
                    checked.add(name)
            checked |= {name for message in messages for name in _oneofs(message)}
    assert accepted == {}
    assert {name for name, text in comments.items() if text.startswith("Required.")} - checked == set()


def _oneofs(message: Any) -> Iterator[str]:
    """The names of oneofs in a message and in those inside it, one of whose fields is set."""
    for field, value in message.ListFields():
        if field.containing_oneof is not None:
            yield f"{message.DESCRIPTOR.name}.{field.containing_oneof.name}"
        if field.message_type is not None and not field.is_repeated:
            yield from _oneofs(value)
