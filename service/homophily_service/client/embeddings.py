"""Embeddings: made from links, gone on from, read, listed, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_service._pb import embedding_pb2, job_pb2
from homophily_service.client.answers import Map
from homophily_service.client.base import from_tensor
from homophily_service.client.errors import Unavailable
from homophily_service.client.handle import JobHandle
from homophily_service.client.jobs import Jobs, check_lengths
from homophily_service.client.labels import GivenLabels, to_labels
from homophily_service.client.parameters import choice, embedding_message, graph_message, options_message
from homophily_service.client.results import Dataset, Embedding, Model
from homophily_service.names import EmbeddingName, ModelName, ProjectName

Pairs = Iterable[tuple[int, int]]

SUGGEST = "suggest"
_FIELDS: dict[str, int] = {
    "coordinates": embedding_pb2.EMBEDDING_FIELD_COORDINATES,
    "clusters": embedding_pb2.EMBEDDING_FIELD_CLUSTERS,
    "must_link": embedding_pb2.EMBEDDING_FIELD_MUST_LINKS,
    "cannot_link": embedding_pb2.EMBEDDING_FIELD_CANNOT_LINKS,
    "violated_must": embedding_pb2.EMBEDDING_FIELD_VIOLATED_MUST_LINKS,
    "violated_cannot": embedding_pb2.EMBEDDING_FIELD_VIOLATED_CANNOT_LINKS,
}


class Embeddings(Jobs):
    """The calls about embeddings."""

    def embed(
        self,
        data: Any,
        *,
        must_link: Pairs = (),
        cannot_link: Pairs = (),
        labels: Any = None,
        withdrawn_must: Pairs = (),
        withdrawn_cannot: Pairs = (),
        n_components: int | None = None,
        n_clusters: int | str | None = None,
        n_neighbors: int | None = None,
        metric: str | None = None,
        weights: str | None = None,
        sigma_x: float | None = None,
        exponent: int | None = None,
        symmetrize: str | None = None,
        space: str | None = None,
        n_directions: int | None = None,
        data_weight: float | None = None,
        lambda2: float | None = None,
        lambda3: float | None = None,
        sigma_f: float | None = None,
        continuation: float | None = None,
        repulsion: float | None = None,
        closure: bool | str | None = None,
        link_edges: float | None = None,
        link_loss: str | None = None,
        relationship: str | None = None,
        lambda2_per_link: bool | None = None,
        max_iter: int | None = None,
        tol: float | None = None,
        normalized: bool | None = None,
        embedding_id: str | None = None,
        wait: float = 0.0,
        priority: int = 0,
        time_limit: float | None = None,
        max_attempts: int | None = None,
        request_id: str | None = None,
    ) -> JobHandle[Embedding]:
        """Start a job that maps points so that links are obeyed.

        Parameters
        ----------
        data : a dataset or its name; points as for ``upload``; a Model, whose points and graph are taken; or an
            Embedding, from whose map, links and labels the job goes on. Models and embeddings may also be given by
            their full names.
        must_link, cannot_link : pairs of points that belong together, or apart.
        labels : given as y in ``fit``; each pair of them is a link.
        withdrawn_must, withdrawn_cannot : links of the earlier embedding that do not count any more.
        n_components : dimensions of the map; 2 if not given, and those of an earlier embedding.
        n_clusters : also divide the points into so many clusters; "suggest" has the graph say how many.
        n_neighbors … n_directions : see the core's ``KNNGraph``; models and embeddings have their graph already.
        data_weight … normalized : see the core's ``ERREmbedding``, which also tells the paper's form. An earlier
            embedding's count where None is given. With ``closure=True`` or "two-class", links that contradict each
            other are refused; by default they are weighed, and a warning of the embedding gives an example.
        embedding_id : the embedding's short name; the job's if not given.
        wait … request_id : as in ``fit``.

        >>> import numpy as np
        >>> from homophily_service.client import Client
        >>> client = Client("localhost:50051")
        >>> X = np.random.default_rng(0).normal(size=(100, 3))
        >>> embedding = client.embed(X, must_link=[(0, 1)], cannot_link=[(0, 2)], n_clusters=2).result()
        >>> client.read_embedding(embedding).coordinates.shape
        (100, 2)
        >>> more = client.embed(embedding, must_link=[(2, 3)]).result()
        >>> more.parent_embedding == embedding.name, more.links.must
        (True, 2)
        """
        given = {"labels": to_labels(labels, "labels")}
        request = job_pb2.EmbedRequest(
            links=_links(must_link, cannot_link, "{}_link"),
            withdrawn=_links(withdrawn_must, withdrawn_cannot, "withdrawn_{}"),
            labels=given["labels"].message,
            graph=graph_message(
                n_neighbors=n_neighbors,
                metric=metric,
                weights=weights,
                sigma_x=sigma_x,
                exponent=exponent,
                symmetrize=symmetrize,
                space=space,
                n_directions=n_directions,
            ),
            solver=embedding_message(
                data_weight=data_weight,
                lambda2=lambda2,
                lambda3=lambda3,
                sigma_f=sigma_f,
                continuation=continuation,
                repulsion=repulsion,
                closure=closure,
                link_edges=link_edges,
                link_loss=link_loss,
                relationship=relationship,
                lambda2_per_link=lambda2_per_link,
                max_iter=max_iter,
                tol=tol,
                normalized=normalized,
            ),
            n_components=n_components,
            n_clusters=_number_of_clusters(n_clusters),
            embedding_id=embedding_id or "",
            options=options_message(
                request_id=request_id,
                wait=wait,
                priority=priority,
                time_limit=time_limit,
                max_attempts=max_attempts,
            ),
        )
        self._use_source(request, data, given)
        return JobHandle(self._connection, self._submit(self._stub.Embed, request).job)

    def read_embedding(self, embedding: Embedding | str, fields: Iterable[str] | None = None) -> Map:
        """The arrays of an embedding: all, or some of its ``fields``.

        They are "coordinates", "clusters" (if there are any), "must_link", "cannot_link", "violated_must" and
        "violated_cannot".
        """
        described = embedding if isinstance(embedding, Embedding) else self.get_embedding(embedding)
        if fields is None:
            fields = [field for field in _FIELDS if field != "clusters" or described.clusters]
        numbers = {field: choice(_FIELDS, field, "fields") for field in fields}
        return Map(**{field: self._read(described.name, number) for field, number in numbers.items()})

    def get_embedding(self, embedding: Embedding | str) -> Embedding:
        """An embedding's description."""
        request = embedding_pb2.GetEmbeddingRequest(name=str(self._name(EmbeddingName, embedding, "embedding")))
        return Embedding.from_message(self._connection.call(self._stub.GetEmbedding, request).embedding)

    def list_embeddings(self) -> Iterator[Embedding]:
        """The project's embeddings, newest first."""
        request = embedding_pb2.ListEmbeddingsRequest(parent=self._parent)
        for page in self._pages(self._stub.ListEmbeddings, request):
            yield from map(Embedding.from_message, page.embeddings)

    def delete_embedding(self, embedding: Embedding | str) -> None:
        """Delete an embedding. Those that went on from it stay."""
        request = embedding_pb2.DeleteEmbeddingRequest(name=str(self._name(EmbeddingName, embedding, "embedding")))
        self._connection.delete(self._stub.DeleteEmbedding, request)

    def _use_source(self, request: job_pb2.EmbedRequest, data: Any, given: dict[str, GivenLabels]) -> None:
        """Name in the request what is mapped; that labels have the wrong length is noticed here or nowhere."""
        full_name = data if isinstance(data, str) else getattr(data, "name", "")
        is_named = isinstance(data, Model | Embedding | str)
        if is_named and f"/{ModelName.collection}/" in full_name:
            model = self._name(ModelName, data, "data")
            request.parent, request.model = str(ProjectName(model.project)), str(model)
            if given["labels"].length is not None:
                check_lengths(given, (data if isinstance(data, Model) else self.get_model(data)).points)
        elif is_named and f"/{EmbeddingName.collection}/" in full_name:
            embedding = self._name(EmbeddingName, data, "data")
            request.parent, request.embedding = str(ProjectName(embedding.project)), str(embedding)
            if given["labels"].length is not None:
                check_lengths(given, (data if isinstance(data, Embedding) else self.get_embedding(data)).points)
        elif isinstance(data, Dataset | str):
            self._use_dataset(request, data, given)
        else:
            self._use_points(request, data, given)

    def _read(self, name: str, number: int) -> NDArray[Any]:
        """An array of an embedding, taken up again where a connection broke."""
        field = embedding_pb2.EmbeddingField.ValueType(number)
        request = embedding_pb2.ReadEmbeddingRequest(name=name, field=field)
        found: NDArray[Any] | None = None
        patience = self._connection.long()
        while found is None or request.start < len(found):
            try:
                for answer in self._connection.stream(self._stub.ReadEmbedding, request):
                    patience.renew()
                    part = from_tensor(answer.rows)
                    if found is None:
                        found = np.empty((answer.total, *part.shape[1:]), dtype=part.dtype)
                    found[answer.start : answer.start + answer.count] = part
                    request.start = answer.start + answer.count
                failure = Unavailable(f"the arrays of {name} broke off at row {request.start}")
            except Unavailable as error:
                failure = error
            if found is None or request.start < len(found):
                patience.wait(failure)
        return found


def _number_of_clusters(n_clusters: int | str | None) -> int | None:
    if isinstance(n_clusters, str):
        if n_clusters != SUGGEST:
            raise ValueError(f"n_clusters must be a number, {SUGGEST!r} or None. Got {n_clusters!r} instead.")
        return 0
    if n_clusters is not None and n_clusters < 2:
        # 0 means something else to the service.
        raise ValueError(f"n_clusters must be at least 2. Got {n_clusters} instead.")
    return n_clusters


def _links(must: Pairs, cannot: Pairs, argument: str) -> embedding_pb2.Links:
    return embedding_pb2.Links(
        must=_pairs(must, argument.format("must")), cannot=_pairs(cannot, argument.format("cannot"))
    )


def _pairs(pairs: Pairs, argument: str) -> list[embedding_pb2.Link]:
    links = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs))
    if links.size and (links.ndim != 2 or links.shape[1] != 2 or links.dtype.kind not in "iu"):
        raise ValueError(f"{argument} must be pairs of row numbers. Got an array of shape {links.shape} instead.")
    return [embedding_pb2.Link(first=first, second=second) for first, second in links.tolist()]
