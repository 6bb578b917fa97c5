"""Hyper-parameters chosen by labels that are held out, in the paper's two stages.

:class:`~homophily.TunedClassifier` does all of it on one machine. For several machines, one process keeps a
:class:`~homophily.Search` and sends the groups it asks for to others, which :func:`evaluate` them and send the outcomes
back, both as JSON if need be:

>>> from sklearn.datasets import make_moons
>>> X, y = make_moons(200, noise=0.1, random_state=0)
>>> y[20:] = -1
>>> search = Search(n_points=200, n_classes=2, method="irr", trials=4)
>>> while groups := search.ask():
...     search.tell(evaluate(group, build_graph(group.graph, X), y) for group in groups)
>>> len(search.trials), sorted(search.best.parameters)
(4, ['lambda1', 'n_neighbors', 'sigma_x', 'weights'])
"""

from homophily.selection.evaluation import build_graph, evaluate
from homophily.selection.records import Best, Group, Outcome, Result, Trial
from homophily.selection.search import Search
from homophily.selection.tuned import TunedClassifier

__all__ = ["Best", "Group", "Outcome", "Result", "Search", "Trial", "TunedClassifier", "build_graph", "evaluate"]
