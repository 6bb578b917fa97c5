"""Label and map data of which only a little is labelled, by explicit relationship regularisation (ERR).

>>> from sklearn.datasets import load_digits
>>> from homophily import ERRClassifier
>>> X, y = load_digits(return_X_y=True)
>>> y[100:] = -1
>>> ERRClassifier(power=2).fit(X, y).transduction_[:4]
array([0, 1, 2, 3])
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
