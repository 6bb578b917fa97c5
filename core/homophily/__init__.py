"""Label and map data of which only a little is labelled, by explicit relationship regularisation (ERR).

>>> from sklearn.datasets import load_digits
>>> from homophily import ERRClassifier
>>> X, y = load_digits(n_class=2, return_X_y=True)
>>> few = y.copy()
>>> few[10:] = -1
>>> classifier = ERRClassifier().fit(X, few)
>>> float((classifier.transduction_ == y).mean())
1.0
"""

from homophily.classify import ERRClassifier, IRRClassifier
from homophily.errors import HomophilyWarning, NeighborsWarning, UnlabelledComponentsWarning
from homophily.graph import KNNGraph
from homophily.relationship import relationship_energy

__all__ = [
    "ERRClassifier",
    "HomophilyWarning",
    "IRRClassifier",
    "KNNGraph",
    "NeighborsWarning",
    "UnlabelledComponentsWarning",
    "relationship_energy",
]
