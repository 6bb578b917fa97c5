"""The next question worth asking, and why an answer is what it is.

Which points to label next (:func:`suggest_points`), which pairs to ask about (:func:`suggest_pairs`), which labels
carry an answer (:func:`explain`), and which labels their surroundings contradict (:func:`suspicious_labels`). All four
take fitted estimators and change nothing in them.
"""

from homophily.active.explanation import Contribution, Explanation, explain
from homophily.active.pairs import PairSuggestion, suggest_pairs
from homophily.active.points import PointSuggestion, suggest_points
from homophily.active.suspects import SuspiciousLabel, suspicious_labels

__all__ = [
    "Contribution",
    "Explanation",
    "PairSuggestion",
    "PointSuggestion",
    "SuspiciousLabel",
    "explain",
    "suggest_pairs",
    "suggest_points",
    "suspicious_labels",
]
