"""Check that the docstrings of all exported names have numpydoc's form: python docs/check_docstrings.py.

`make lint` runs it. Public methods are checked too; those of scikit-learn are not.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator

from numpydoc.validate import validate

MODULES = ("homophily", "homophily.baselines", "homophily.model_selection", "homophily.selection", "homophily.storage")
IGNORED = {
    "GL01": "the summary begins on the line of the quotes, as everywhere in this package",
    "ES01": "one sentence is enough where it says everything",
    "SA01": "references are links in the text",
    "SS05": "it takes any first word that ends in 's' for a verb, such as 'Explicit relationships'",
}
IGNORED_OF_EXCEPTIONS = {"EX01": "the examples of estimators show what they are about"}
IGNORED_OF_RECORDS = {
    "PR01": "the fields of a NamedTuple have docstrings of their own",
    "EX01": "the functions that return it have the example",
}
IGNORED_OF_METHODS = {
    "PR01": "a method whose arguments the class explains lists none",
    "RT01": "the first sentence says what is returned",
    "EX01": "the class has the example",
}


def exported() -> Iterator[tuple[str, dict[str, str]]]:
    """Names of the exported objects and of their public methods, with the codes ignored for each."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            exported = getattr(module, name)
            yield f"{module_name}.{name}", IGNORED | _ignored_of(exported)
            for member, value in vars(exported).items() if inspect.isclass(exported) else ():
                if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{module_name}.{name}.{member}", IGNORED | IGNORED_OF_METHODS


def _ignored_of(exported: object) -> dict[str, str]:
    if not isinstance(exported, type):
        return {}
    if issubclass(exported, BaseException):
        return IGNORED_OF_EXCEPTIONS
    return IGNORED_OF_RECORDS if issubclass(exported, tuple) else {}


def main() -> int:
    """Print what is wrong; the exit code is 1 if anything is."""
    wrong = 0
    for name, ignored in exported():
        for code, message in validate(name)["errors"]:
            if code not in ignored:
                print(f"{name}: {code} {message}")
                wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
