"""Hides packages that `pip install homophily[service]` does not install: processes without tracking must not need them.

The extra `tracking` and the images install all of them but pytest; tests of tracking run with everything.

Besides, processes start in two thirds of the time without them: scikit-learn imports pandas if it is installed.
"""

import sys

ABSENT = ("pandas", "matplotlib", "pytest")


class Absent:
    """Makes packages look as if they were not installed. None in sys.modules is not enough: some look there."""

    # No importlib.abc.MetaPathFinder: its import would be a twentieth of each process's start.

    def find_spec(self, fullname, *_):
        """Refuse to find them."""
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Absent())
