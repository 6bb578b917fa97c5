"""Classes that are strings, in any order: NumPy's sort of its StringDType crashes the process for some."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import homophily
import homophily_service

from .adversary import anti_quicksort
from .serving import Project

CLASSES = [f"{number:03d}" for number in anti_quicksort(100)]
PACKAGES = [Path(package.__path__[0]) for package in (homophily, homophily_service)]

# What is done with the classes of a request, by the API and by jobs.
PROGRAM = """
import json, sys, tempfile
import numpy as np
from homophily.supervision.labels import encode_labels
from homophily_client._pb import model_pb2
from homophily_service.storage.embeddings import Given, load_embedding, save_embedding
from homophily_service.contract.links import Links, links_of_labels
from homophily_service.contract.labels import check_two_classes, class_values, classes_of, read_labels
from homophily_service.storage.blobs.objects import Blobs

classes = json.loads(sys.argv[1])
values = model_pb2.ClassValues(strings=model_pb2.StringValues(values=classes))
message = model_pb2.Labels(points=range(len(classes)), classes=values)
labels = read_labels(message, len(classes), "labels", max_classes=1000)
check_two_classes(labels.classes, "labels")
known, positions = np.unique(labels.classes, return_inverse=True)
assert known[positions].tolist() == classes
assert class_values(classes_of(values)) == values
links = links_of_labels(labels.points, labels.classes)
blobs = Blobs(tempfile.mkdtemp())
given = Given(links, labels.points, labels.classes)
save_embedding(blobs, "embeddings/p/e/t", np.zeros((len(classes), 2)), None, links, links, given)
assert load_embedding(blobs, "embeddings/p/e/t")[1].label_classes.tolist() == classes
assert encode_labels(np.array(classes, dtype=np.dtypes.StringDType())).classes.tolist() == sorted(classes)
"""


def test_the_adversary_finds_an_order_that_numpy_sorts_slowly() -> None:
    comparisons = 0

    class Counted(int):
        def __lt__(self, other: int) -> bool:
            nonlocal comparisons
            comparisons += 1
            return int(self) < int(other)

    order = anti_quicksort(100)
    assert sorted(order) == list(range(100))
    values = np.empty(100, dtype=object)
    values[:] = [Counted(number) for number in order]
    values.sort()
    assert comparisons > 2 * 100 * np.log2(100)


def test_string_classes_in_an_order_against_quicksort_are_read_and_stored() -> None:
    program = [sys.executable, "-c", PROGRAM, json.dumps(CLASSES)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_string_classes_in_an_order_against_quicksort_kill_no_process(project: Project) -> None:
    points = np.random.default_rng(0).normal(size=(200, 3))
    labels = dict(enumerate(CLASSES))
    model = project.model(points, labels)
    assert list(model.classes.strings.values) == sorted(CLASSES)
    assert model.iteration_count > 0
    changed = project.transduce(model.name, {150: "new"})
    assert changed.transduce.model.labelled_count == 101
    assert project.embed(points, labels=project.fit_request(points, labels).labels).labelled_count == 100


def test_no_module_makes_arrays_of_numpys_strings() -> None:
    for module in (path for package in PACKAGES for path in package.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(module.read_text())))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name)}
        assert "StringDType" not in names, f"{module}: use an object array, which can be sorted"
