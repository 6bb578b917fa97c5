"""Sphinx's settings: `make docs` builds docs/_build/html, and any warning fails the build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import homophily_client

project = "Homophily"
author = "The Homophily authors"
project_copyright = "The Homophily authors, Apache License 2.0"
release = version = homophily_client.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
    "repository",
    "reference",
]
exclude_patterns = ["_build", "_ext"]
html_theme = "furo"
html_title = f"Homophily {release}"
html_static_path = ["_static"]
html_css_files = ["homophily.css"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
# As on GitHub, so that a link to a heading works in both places.
myst_heading_anchors = 4

# The reference lists the members itself (docs/_ext/reference/python.py).
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 100
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

# Types of other libraries, whose documentation the build cannot reach without a network.
nitpick_ignore_regex = [
    ("py:class", r"scipy\.sparse\..*"),
    # Types without a page: of what an attribute holds, and of a type variable.
    ("py:class", r"homophily\.supervision\.calibration\.Calibration"),
    ("py:class", r"homophily_client\._a?sync\.handle\.Result"),
    ("py:class", r"(numpy|np|numpy\.typing|npt|grpc|collections|datetime|pathlib)\..*"),
    (
        "py:class",
        r"(NDArray|ArrayLike|Path|datetime|Mapping|Sequence|Iterable|Iterator|AsyncIterator|Callable|Any|Literal|Self)",
    ),
]
