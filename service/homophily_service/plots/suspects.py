"""The labels that their surroundings contradict, as a table."""

from __future__ import annotations

from typing import Any

from homophily_client.results import Model


def suspect_columns(model: Model) -> dict[str, list[Any]]:
    """The suspicious labels of a model by column, the most suspicious first; empty if there are none."""
    found = model.suspicious_labels
    if not found:
        return {}
    return {
        "point": [one.point for one in found],
        "label": [str(model.classes[one.class_position]) for one in found],
        "rather": [str(model.classes[one.answer_position]) for one in found],
        "suspicion": [one.suspicion for one in found],
    }
