"""The public names of the packages: a page for each class or function, or several on one page.

What is public is what the modules of ``PACKAGES`` list in ``__all__``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.inspect import signature as signature_of
from sphinx.util.inspect import stringify_signature

from reference.protos import comments

PACKAGES = ("homophily", "homophily_client")
#: Modules without ``__all__`` whose functions the documentation uses.
MORE = {"homophily_service.plots.files": ["plot_map", "write_map"]}
#: Names that need no description.
OBVIOUS = {"__version__"}
#: Methods that scikit-learn adds to every estimator, described by it.
REQUESTS = re.compile(r"set_\w+_request")

_log = logging.getLogger("reference")


def public_modules() -> dict[str, list[str]]:
    """The exported names by module. A name that a package exports again belongs to the package."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        walked = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        modules = [
            package,
            *(one.name for one in walked if not any(part.startswith("_") for part in one.name.split("."))),
        ]
        seen: set[int] = set()
        for name in modules:
            module = importlib.import_module(name)
            own = [
                one
                for one in getattr(module, "__all__", ())
                if one not in OBVIOUS and id(getattr(module, one)) not in seen
            ]
            seen |= {id(getattr(module, one)) for one in own}
            if own:
                found[name] = own
    return found | MORE


def table(module: str, *names: str) -> str:
    """A table of the names of a module that are no exceptions, or of some of them, and links to their pages."""
    rows, pages = ["| | |", "|---|---|"], []
    for name in names or _names(module, exceptions=False):
        rows.append(f"| {{py:obj}}`~{module}.{name}` | {_summary(getattr(importlib.import_module(module), name))} |")
        pages.append(f"api/{module}.{name}")
    return "\n".join([*rows, "", "```{toctree}", ":hidden:", "", *pages, "```"])


def module(name: str) -> str:
    """What a module's docstring says."""
    return f"```{{eval-rst}}\n.. automodule:: {name}\n```"


def inline(module: str, *kinds: str) -> str:
    """The documentation of names on this page: ``exceptions``, those from some submodules, or all."""
    if kinds == ("exceptions",):
        names = _names(module, exceptions=True)
    else:
        home = importlib.import_module(module)
        submodules = {f"{module}.{kind}" for kind in kinds}
        names = [one for one in _all_names(module) if not kinds or getattr(home, one).__module__ in submodules]
    assert names, f"{module} {kinds}"
    return "\n".join(["```{eval-rst}", *(f"{_directive(module, name)}\n" for name in names), "```"])


def write_pages(folder: Path) -> None:
    """A page for each name that a table lists; files that do not change are left alone."""
    marks = [
        line
        for page in folder.parent.glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("<!-- generated: table ")
    ]
    wanted = {}
    for mark in marks:
        module, *names = mark.removeprefix("<!-- generated: table ").removesuffix(" -->").split()
        for name in names or _names(module, exceptions=False):
            title = f"{module}.{name}"
            wanted[folder / f"{title}.rst"] = f"{name}\n{'=' * len(name)}\n\n{_directive(module, name)}\n"
    folder.mkdir(parents=True, exist_ok=True)
    for path in set(folder.iterdir()) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def members(exported: type) -> list[str]:
    """The public methods, properties and fields of a class that our packages define."""
    found: dict[str, None] = {}
    for base in reversed(exported.__mro__):
        if base.__module__.partition(".")[0] in PACKAGES:
            defined = [*vars(base), *inspect.get_annotations(base)]
            found |= dict.fromkeys(
                one
                for one in defined
                if not one.startswith("_") and one != "from_message" and not REQUESTS.fullmatch(one)
            )
    # Parameters of a dataclass are described with it.
    described = exported.__doc__ or ""
    if "Parameters\n" in described:
        return [one for one in found if _is_method(exported, one)]
    return list(found)


def signature(_: Sphinx, what: str, name: str, obj: Any, *__: Any) -> tuple[str, None] | None:
    """Leave types out of the core's signatures: the parameters are described with theirs."""
    if name.endswith("JobHandle"):
        # Calls return them; nobody makes one.
        return "", None
    if not name.startswith("homophily.") or what not in ("class", "function", "method"):
        return None
    try:
        plain = signature_of(obj, bound_method=what == "method")
    except (TypeError, ValueError):
        return None
    return stringify_signature(plain, show_annotation=False, show_return_annotation=False), None


def check(_: Sphinx, env: BuildEnvironment) -> None:
    """Warn about exported names that no page shows, and about those without a docstring."""
    described = env.domains["py"].objects  # type: ignore[attr-defined]
    for module, names in public_modules().items():
        for name in names:
            if f"{module}.{name}" not in described:
                _log.warning("%s.%s is exported, but not in the reference", module, name)
            for undescribed in _undescribed(getattr(importlib.import_module(module), name), f"{module}.{name}"):
                _log.warning("%s has no docstring", undescribed)


def _undescribed(exported: Any, name: str) -> Iterator[str]:
    # A dataclass without a docstring gets its signature as one.
    text = exported.__doc__ or ""
    if not text or text.startswith(f"{getattr(exported, '__name__', '')}("):
        yield name
    for parameter in inspect.signature(exported).parameters if "Parameters\n" in text else ():
        if not re.search(rf"^ *(\w+, )*\*{{0,2}}{parameter}(, \w+)* :", text, re.MULTILINE):
            yield f"{name}, parameter {parameter},"
    for member in members(exported) if isinstance(exported, type) else ():
        if _is_method(exported, member) and not inspect.getdoc(getattr(exported, member)):
            yield f"{name}.{member}"


def _all_names(module: str) -> list[str]:
    return public_modules()[module]


def _names(module: str, *, exceptions: bool) -> list[str]:
    home = importlib.import_module(module)
    return [one for one in _all_names(module) if _is_exception(getattr(home, one)) == exceptions]


def _is_exception(exported: object) -> bool:
    return isinstance(exported, type) and issubclass(exported, BaseException)


def _summary(exported: object) -> str:
    first = (inspect.getdoc(exported) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace(":class:", "").replace("``", "`").replace("|", r"\|")


def _directive(module: str, name: str) -> str:
    exported = getattr(importlib.import_module(module), name)
    if not isinstance(exported, type):
        return f".. autofunction:: {module}.{name}"
    kind = "autoexception" if _is_exception(exported) else "autoclass"
    listed = members(exported)
    methods = [member for member in listed if _is_method(exported, member)]
    lines = [f".. {kind}:: {module}.{name}", f"   :members: {', '.join(methods)}" if methods else "", ""]
    for member in listed:
        if member not in methods:
            lines += [*_field(exported, member), ""]
    return "\n".join(lines)


def _is_method(exported: type, member: str) -> bool:
    value = inspect.getattr_static(exported, member, None)
    return isinstance(value, FunctionType | classmethod | staticmethod | property)


def _field(exported: type, member: str) -> Iterator[str]:
    """A field of a dataclass or tuple, or a member of an enum; autodoc leaves out what has no docstring of its own."""
    owner = next(base for base in exported.__mro__ if member in (*inspect.get_annotations(base), *vars(base)))
    yield f"   .. py:attribute:: {member}"
    if member in inspect.get_annotations(owner):
        yield f"      :type: {inspect.get_annotations(owner)[member]}"
    else:
        yield f"      :value: {str(getattr(exported, member))!r}"
    yield ""
    said = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs().get((owner.__name__, member))
    text = " ".join(said).strip() if said else _from_proto(exported, member)
    if not text:
        _log.warning("%s.%s has no description", exported.__name__, member)
    yield f"      {text}"


def _from_proto(record: Any, member: str) -> str:
    """What the proto says about a field that the code does not describe."""
    message = getattr(record, "_message_type", None)
    if message is None:
        return ""
    fields = record.__dataclass_fields__
    metadata = fields[member].metadata if member in fields else {}
    text = comments().get(f"{message.DESCRIPTOR.name}.{metadata.get('name', member)}", "")
    # Every field of an answer is set by the server.
    return re.sub(r"\s+", " ", text.removeprefix("Required.").removeprefix("Output only.")).strip()
