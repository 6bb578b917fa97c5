"""Fields of the protos that clients may rely on keep their names, or the changelog names the change."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from homophily_client._pb import dataset_pb2, embedding_pb2, homophily_service_pb2, job_pb2, model_pb2, points_pb2

ROOT = Path(__file__).parents[2]
MODULES = (dataset_pb2, embedding_pb2, homophily_service_pb2, job_pb2, model_pb2, points_pb2)
MESSAGES = {name: message for module in MODULES for name, message in module.DESCRIPTOR.message_types_by_name.items()}


def renamed_fields() -> list[tuple[str, str]]:
    """The released "Message.field", and its name now."""
    released = descriptor_pb2.FileDescriptorSet.FromString((ROOT / "proto" / "released.binpb").read_bytes())
    return [
        (f"{message.name}.{field.name}", MESSAGES[message.name].fields_by_number[field.number].name)
        for file in released.file
        if file.package == "homophily.v1"
        for message in file.message_type
        for field in message.field
        if MESSAGES[message.name].fields_by_number[field.number].name != field.name
    ]


@pytest.mark.parametrize(("released", "now"), renamed_fields())
def test_a_field_is_renamed_only_to_a_count_and_the_changelog_names_it(released: str, now: str) -> None:
    assert now.endswith("_count")
    assert f"`{released}` is `{now}`" in " ".join((ROOT / "CHANGELOG.md").read_text().split())
