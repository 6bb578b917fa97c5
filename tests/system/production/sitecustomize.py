"""What `pip install homophily[service]` is without: processes that track nothing must not need it.

The extra `tracking` brings all but pytest, and so do the images; tests that track run with everything.

Besides, they start in two thirds of the time without it: scikit-learn imports pandas wherever there is one.
"""

import sys
from importlib.abc import MetaPathFinder

ABSENT = ("pandas", "pyarrow", "matplotlib", "pytest")


class Absent(MetaPathFinder):
    """Packages as if they were not installed. None in sys.modules would not do: some look there by themselves."""

    def find_spec(self, fullname, *_):
        """Refuse to find them."""
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Absent())
