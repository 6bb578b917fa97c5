"""Names: what is accepted is on the allow-list, whatever is thrown at it."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily_client.names import (
    DatasetName,
    EmbeddingName,
    InvalidName,
    JobName,
    ModelName,
    ProjectName,
    ResourceName,
    check_id,
    new_id,
)

ALLOWED = string.ascii_lowercase + string.digits + "-"
KINDS = [DatasetName, ModelName, EmbeddingName, JobName]
WICKED = [
    "",
    ".",
    "..",
    "../..",
    "a/..",
    "a/b",
    "a\\b",
    "#",
    "a#b",
    "%2f",
    "a%2fb",
    "%00",
    "\0",
    "a\0",
    "a\n",
    "\na",
    "a\r",
    "a ",
    " a",
    "-",
    "-a",
    "A",
    "a_b",
    "a.b",
    "~",
    "*",
    "'; DROP TABLE jobs; --",
    "ä",
    "ａ",
    "а",  # Cyrillic
    "٣",  # a digit, but not one of ours
    "ß",
    "ı",
    "\u200b",
    "a\u0301",
    "\ud800",
    "\U0001f642",
    "a" * 64,
    "a" * 1_000_000,
]

ids = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
# Anything, but mostly what is nearly an id.
strings = st.text() | st.text(ALLOWED + "./#%\0\nAä_", max_size=70) | st.sampled_from(WICKED)


def is_safe(value: str) -> bool:
    return 1 <= len(value) <= 63 and all(letter in ALLOWED for letter in value) and not value.startswith("-")


def is_accepted(value: str) -> bool:
    try:
        return check_id(value, "id") == value
    except InvalidName:
        return False


@given(strings)
def test_an_id_is_accepted_if_and_only_if_it_is_safe(value: str) -> None:
    assert is_accepted(value) == is_safe(value)


def test_no_unsafe_id_of_a_hundred_thousand_is_accepted() -> None:
    chance = random.Random(0)
    letters = ALLOWED * 4 + "./#%\0\n\\ :~*?'\"ABCäаａ٣\u200b\ud800\U0001f642"
    seeds = [*WICKED[:-1], "default", "a" * 63, "0-9", new_id()]
    accepted = 0
    for _ in range(100_000):
        value = list(chance.choice(seeds))
        for _ in range(chance.randrange(4)):
            place = chance.randint(0, len(value))
            value[place : place + chance.randrange(2)] = chance.choices(letters, k=chance.randrange(3))
        candidate = "".join(value)
        verdict = is_accepted(candidate)
        assert verdict == is_safe(candidate)
        accepted += verdict
    # Both answers were tried.
    assert 1000 < accepted < 50_000


@pytest.mark.parametrize("value", WICKED, ids=lambda value: ascii(value)[:20])
def test_a_wicked_id_is_refused_with_a_message_that_is_short_and_plain(value: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_id(value, "dataset_id")
    assert caught.value.field == "dataset_id"
    assert len(str(caught.value)) < 1000
    assert str(caught.value).removesuffix("…").isprintable()
    str(caught.value).encode()


@pytest.mark.parametrize("kind", KINDS)
@given(project=ids, identifier=ids)
def test_names_are_written_and_read_alike(kind: type[ResourceName], project: str, identifier: str) -> None:
    name = kind(project, identifier)
    assert str(name) == f"projects/{project}/{kind.collection}/{identifier}"
    assert kind.parse(str(name), "name") == name
    assert ProjectName.parse(str(ProjectName(project)), "parent") == ProjectName(project)


@given(strings, strings, strings, strings)
def test_a_name_that_is_read_is_written_alike_and_has_safe_ids(first: str, project: str, kind: str, last: str) -> None:
    for text in ("/".join((first, project, kind, last)), "/".join(("projects", project, "jobs", last)), first):
        try:
            name = JobName.parse(text, "name")
        except InvalidName:
            continue
        assert str(name) == text
        assert is_safe(name.project)
        assert is_safe(name.id)


@given(strings)
def test_a_project_that_is_read_is_written_alike_and_is_safe(value: str) -> None:
    for text in (value, f"projects/{value}"):
        try:
            name = ProjectName.parse(text, "parent")
        except InvalidName:
            continue
        assert str(name) == text
        assert is_safe(name.project)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "projects/default",
        "projects/default/jobs",
        "projects/default/jobs/",
        "projects/default/jobs/j/",
        "/projects/default/jobs/j",
        "projects//jobs/j",
        "projects/default/models/m",
        "Projects/default/jobs/j",
        "projects/default/jobs/j\n",
        "projects/../jobs/j",
        "projects/default/jobs/..",
        "projects/default/jobs/a%2fb",
    ],
)
def test_names_of_another_form_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match=r"^name: must be"):
        JobName.parse(name, "name")


def test_names_of_different_kinds_are_different() -> None:
    assert len({kind("default", "x") for kind in KINDS}) == len(KINDS)


def test_new_ids_are_safe_and_new() -> None:
    made = {new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(is_safe(identifier) for identifier in made)
