"""The next question worth asking, and why an answer is what it is.

Which points to label next (:func:`suggest_points`), which pairs to ask about (:func:`suggest_pairs`), which labels
carry an answer (:func:`explain`), which links hold a point in its place (:func:`explain_place`), and which labels their
surroundings contradict (:func:`suspicious_labels`). All take fitted estimators and change nothing in them.
"""

from homophily.active.explanation import Contribution, Explanation, explain
from homophily.active.held_places import HeldPlace, HoldingLink, explain_place
from homophily.active.pairs import PairSuggestion, suggest_pairs
from homophily.active.points import PointSuggestion, suggest_points
from homophily.active.suspects import SuspiciousLabel, suspicious_labels

__all__ = [
    "Contribution",
    "Explanation",
    "HeldPlace",
    "HoldingLink",
    "PairSuggestion",
    "PointSuggestion",
    "SuspiciousLabel",
    "explain",
    "explain_place",
    "suggest_pairs",
    "suggest_points",
    "suspicious_labels",
]
