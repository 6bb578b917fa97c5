"""The commands of ``homophily`` with their arguments and options."""

from __future__ import annotations

import inspect
from itertools import groupby
from typing import Any

import typer

from homophily_service.cli.commands import app
from reference.markdown import described, directive, escaped


def generate() -> str:
    """All commands, by the panels of ``homophily --help``."""
    root = typer.main.get_command(app)
    parts = [escaped(root.epilog or ""), ""]
    commands: dict[str, list[Any]] = {}
    for command in root.commands.values():  # type: ignore[attr-defined]
        commands.setdefault(command.rich_help_panel, []).append(command)
    for panel, members in commands.items():
        parts += [f"## {panel}", ""]
        for command in members:
            parts += _section(command, "homophily")
    return "\n".join(parts)


def _section(command: Any, parent: str) -> list[str]:
    name = f"{parent} {command.name}"
    context = command.context_class(command, info_name=name)
    parts = [f"### {name}", "", described(inspect.cleandoc(command.help or ""), name), ""]
    subcommands = getattr(command, "commands", {})
    if subcommands:
        return parts + [line for one in subcommands.values() for line in _section(one, name)]
    # Without nesting, Sphinx would take the same option of two commands for one.
    usage = " ".join([name, "[OPTIONS]", *(_metavar(one) for one in command.params if _is_argument(one))])
    parts += ["```text", usage, "```", "", f"```{{program}} {name}", "```", ""]
    shown = [one for one in command.params if not one.hidden]
    parts += [_parameter(one, context, name) for one in shown if _is_argument(one)]
    options = [one for one in shown if not _is_argument(one)]
    # The common ones last, as they are the same for all commands.
    panels = {panel: number for number, panel in enumerate(dict.fromkeys(_panel(one) for one in options))}
    options.sort(key=lambda one: (_panel(one) == "Service", panels[_panel(one)]))
    for panel, members in groupby(options, _panel):
        if len(panels) > 1:
            parts += [f"**{panel}**", ""]
        parts += [_parameter(one, context, name) for one in members]
    return parts


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _panel(parameter: Any) -> str:
    return parameter.rich_help_panel or "Options"


def _metavar(parameter: Any) -> str:
    name = _argument_name(parameter)
    return name if parameter.required else f"[{name}]"


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]")


def _parameter(parameter: Any, context: Any, command: str) -> str:
    record = parameter.get_help_record(context)
    assert record is not None, parameter.name
    names, text = record
    if _is_argument(parameter):
        return directive("option", _argument_name(parameter), _body(parameter, text, command))
    return directive("option", names.replace(" / ", ", "), _body(parameter, text, command))


def _body(parameter: Any, text: str, command: str) -> str:
    described(parameter.help, f"{parameter.opts[0]} of {command}")
    return escaped(text)
