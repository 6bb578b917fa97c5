"""Label a whole dataset from a handful of labels, and map it, by explicit relationship regularisation (ERR)."""

import pkgutil
from pathlib import Path

import homophily.scikit_learn  # noqa: F401  # before anything else imports scikit-learn
from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.estimators.clustering import ERRClustering
from homophily.estimators.embedding import ERREmbedding, LinkPenalty
from homophily.estimators.relationship_energy import relationship_energy
from homophily.estimators.spectral_embedding import SpectralEmbedding
from homophily.exceptions import (
    ApproximationWarning,
    ContradictingLinksError,
    ContradictingLinksWarning,
    DeviceFailedError,
    DeviceFallbackWarning,
    DeviceUnavailableError,
    DisconnectedGraphWarning,
    DominantColumnWarning,
    HomophilyWarning,
    NeighborsWarning,
    ParameterError,
    UnknownCategoriesWarning,
    UnlabelledComponentsWarning,
)
from homophily.graph.knn_graph import KNNGraph
from homophily.selection import Search, TunedClassifier
from homophily.tables.preprocessing import Preprocessing

# Stubs that users generate from the service's protos form a package homophily.v1, elsewhere on sys.path.
__path__ += [folder for folder in pkgutil.extend_path(list[str](), __name__) if Path(folder, "v1").is_dir()]

__all__ = [
    "ApproximationWarning",
    "ContradictingLinksError",
    "ContradictingLinksWarning",
    "DeviceFailedError",
    "DeviceFallbackWarning",
    "DeviceUnavailableError",
    "DisconnectedGraphWarning",
    "DominantColumnWarning",
    "ERRClassifier",
    "ERRClustering",
    "ERREmbedding",
    "HomophilyWarning",
    "IRRClassifier",
    "KNNGraph",
    "LinkPenalty",
    "NeighborsWarning",
    "ParameterError",
    "Preprocessing",
    "Search",
    "SpectralEmbedding",
    "TunedClassifier",
    "UnknownCategoriesWarning",
    "UnlabelledComponentsWarning",
    "relationship_energy",
]
