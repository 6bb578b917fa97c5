"""Renders the small part of Helm's templates that the chart keeps to; anything else is an error.

    {{ .Values.a.b }}  {{ .Release.Namespace }}  {{ $name }}       values
    "text"  `text`  12                                             constants
    {{ expression | function arguments… }}  {{ function (…) … }}   quote, toJson, fromJson, dig, merge, replace
    {{- if eq a b }} … {{- end }}
    {{- range $name, $value := expression }} … {{- end }}          a map, in the order of its keys

A "-" inside the braces removes the white space on its side, as in Helm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_ACTION = re.compile(r"\{\{(-?)(.*?)(-?)\}\}", re.DOTALL)
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|`[^`]*`|-?\d+|[()|]|[$.]?[A-Za-z_]\w*(?:\.\w+)*)')

Scope = dict[str, Any]


class TemplateError(ValueError):
    """A template that is outside of this part of Helm's language, or a value that is missing."""


def render(text: str, values: dict[str, Any], namespace: str) -> str:
    """Render a template with values, for a release in a namespace."""
    scope: Scope = {"Values": values, "Release": {"Namespace": namespace}}
    pieces = list(_pieces(text))
    out, rest = _block(pieces, scope)
    if rest:
        raise TemplateError("an end without a beginning")
    return out


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Text and actions, in their order; white space beside actions is removed where they say so."""
    at, is_trimmed = 0, False
    for found in _ACTION.finditer(text):
        before = text[at : found.start()]
        before = before.lstrip() if is_trimmed else before
        yield False, before.rstrip() if found[1] else before
        yield True, found[2].strip()
        at, is_trimmed = found.end(), bool(found[3])
    yield False, text[at:].lstrip() if is_trimmed else text[at:]


def _block(pieces: list[tuple[bool, str]], scope: Scope) -> tuple[str, list[tuple[bool, str]]]:
    """Render up to the end of a block; returns what follows it."""
    out = ""
    while pieces:
        (is_action, text), *pieces = pieces
        if not is_action:
            out += text
        elif text.startswith("/*"):
            continue
        elif text == "end":
            return out, [(True, "end"), *pieces]
        elif text.startswith("if "):
            inner, pieces = _inner(pieces, scope)
            out += inner if _value(text.removeprefix("if "), scope) else ""
        elif text.startswith("range "):
            found = re.fullmatch(r"range (\$\w+), (\$\w+) := (.+)", text)
            if found is None:
                raise TemplateError(f"a range must be of a map: {text}")
            body, mapping = pieces, _value(found[3], scope)
            _, pieces = _inner(body, scope | {found[1]: "", found[2]: ""})
            for key in sorted(mapping):
                out += _inner(body, scope | {found[1]: key, found[2]: mapping[key]})[0]
        else:
            value = _value(text, scope)
            out += value if isinstance(value, str) else json.dumps(value)
    return out, []


def _inner(pieces: list[tuple[bool, str]], scope: Scope) -> tuple[str, list[tuple[bool, str]]]:
    out, rest = _block(pieces, scope)
    if not rest:
        raise TemplateError("a block without an end")
    return out, rest[1:]


def _value(text: str, scope: Scope) -> Any:
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise TemplateError(f"not understood: {text[at:]}")
        tokens.append(found[1])
        at = found.end()
    value, rest = _pipeline(tokens, scope)
    if rest:
        raise TemplateError(f"not understood: {' '.join(rest)} in {text}")
    return value


def _pipeline(tokens: list[str], scope: Scope) -> tuple[Any, list[str]]:
    value, tokens = _command(tokens, scope, [])
    while tokens and tokens[0] == "|":
        value, tokens = _command(tokens[1:], scope, [value])
    return value, tokens


def _command(tokens: list[str], scope: Scope, last: list[Any]) -> tuple[Any, list[str]]:
    """A value, or a function with its arguments; what is piped into it is its last argument."""
    name, *rest = tokens
    arguments = []
    if name not in _FUNCTIONS:
        value, rest = _operand(tokens, scope)
        if last or (rest and rest[0] not in ("|", ")")):
            raise TemplateError(f"not a function: {name}")
        return value, rest
    while rest and rest[0] not in ("|", ")"):
        argument, rest = _operand(rest, scope)
        arguments.append(argument)
    return _FUNCTIONS[name](*arguments, *last), rest


def _operand(tokens: list[str], scope: Scope) -> tuple[Any, list[str]]:
    token, *rest = tokens
    if token == "(":
        value, rest = _pipeline(rest, scope)
        if rest[:1] != [")"]:
            raise TemplateError("a bracket without its other half")
        return value, rest[1:]
    if token.startswith('"'):
        return json.loads(token), rest
    if token.startswith("`"):
        return token[1:-1], rest
    if re.fullmatch(r"-?\d+", token):
        return int(token), rest
    value: Any = scope
    for part in token.removeprefix(".").split("."):
        if not isinstance(value, dict) or part not in value:
            raise TemplateError(f"there is no {token}")
        value = value[part]
    return value, rest


def _dig(key: str, default: Any, mapping: dict[str, Any]) -> Any:
    return mapping.get(key, default)


_FUNCTIONS: dict[str, Any] = {
    "eq": lambda one, other: one == other,
    "quote": lambda value: json.dumps(str(value), ensure_ascii=False),
    "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")),
    "fromJson": json.loads,
    "dig": _dig,
    "merge": lambda first, *others: {**{k: v for other in reversed(others) for k, v in other.items()}, **first},
    "replace": lambda old, new, text: text.replace(old, new),
}
