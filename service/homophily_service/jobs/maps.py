"""Converts the parameters of maps in messages, which are flat, to the core's estimators, which are nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homophily import ERREmbedding, LinkPenalty
from homophily.estimators.embedding import WIDTHS, falling_widths

_OF_LINKS = {"lambda3": "weight", "link_loss": "loss", "closure": "closure", "link_edges": "edges"}
_OF_WIDTHS = {"sigma_f": WIDTHS[-1], "continuation": WIDTHS[0] / WIDTHS[-1]}


def make_embedding(n_components: int, parameters: Mapping[str, Any], n_links: int) -> ERREmbedding:
    """The unfitted estimator of a map with ``n_links`` links."""
    flat = dict(parameters)
    penalty = LinkPenalty(**{ours: flat[name] for name, ours in _OF_LINKS.items() if name in flat})
    widths = {name: flat.pop(name, default) for name, default in _OF_WIDTHS.items()}
    per_link = flat.pop("lambda2_per_link", False)
    own = {name: value for name, value in flat.items() if name not in _OF_LINKS}
    embedding = ERREmbedding(
        n_components,
        **own,
        sigma_f=falling_widths(widths["sigma_f"], widths["continuation"]),
        link_penalty=penalty,
    )
    if per_link:
        embedding.lambda2 /= max(1, n_links)
    return embedding


def complete_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a map, with their defaults, as messages name them."""
    defaults: dict[str, Any] = ERREmbedding().get_params(deep=False)
    penalty = LinkPenalty().get_params()
    defaults |= {name: penalty[ours] for name, ours in _OF_LINKS.items()}
    defaults |= {**_OF_WIDTHS, "lambda2_per_link": False}
    return {name: value for name, value in (defaults | dict(parameters)).items() if name != "link_penalty"}
