"""The arrays of a stored model that ReadSolution serves, by their names in the store."""

from __future__ import annotations

# The answers are written beside the classifier's state; the values are part of it.
CLASS_INDICES, SCORES, PROBABILITIES = "answer.class_indices", "answer.scores", "answer.probabilities"
VALUES = "solution"
LABELLED = "label_points"
#: Of the graph: where the id of each point starts, and the bytes of all.
IDS = ("ids_starts", "ids_data")
