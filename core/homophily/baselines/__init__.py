"""The systems that the paper compares ERR with, written from their papers' formulas.

All are used alike: ``SL(n_clusters=3).fit(X, must_link=[(0, 1)], cannot_link=[(0, 2)]).labels_``, where X may be points
or a fitted :class:`~homophily.KNNGraph`.

- Original: spectral clustering, without links.
- SL: links are written into the weights.
- CCSR: a metric on the smoothest eigenvectors that fits the links.
- CSP: two clusters that obey the links to a given degree.
- COSC: the normalised cut itself, with a penalty for violated links.
"""

from homophily.baselines.ccsr import CCSR
from homophily.baselines.cosc import COSC
from homophily.baselines.csp import CSP
from homophily.baselines.original import Original
from homophily.baselines.sl import SL

__all__ = ["CCSR", "COSC", "CSP", "SL", "Original"]
