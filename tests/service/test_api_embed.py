"""Maps over gRPC: what Embed answers, going on from an earlier map, what is refused, and the arrays."""

from __future__ import annotations

import shutil
from typing import Any

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily import ERRClustering, ERREmbedding, KNNGraph, LinkPenalty
from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_client._pb import embedding_pb2 as pb
from homophily_client.names import EmbeddingName
from homophily_service.jobs.embed import continued

from .serving import (
    PATIENCE,
    Matrix,
    Project,
    Service,
    eventually,
    labels_of,
    links_of,
    open_stores,
    refusal,
    running,
    seconds,
)

RNG = np.random.default_rng(0)
TRUTH = np.arange(60) % 3
X = RNG.normal(size=(60, 4)) + 5 * np.eye(3, 4)[TRUTH]
MUST, CANNOT = [(0, 3), (4, 1)], [(0, 1), (2, 0)]
INVALID = grpc.StatusCode.INVALID_ARGUMENT
COORDINATES, CLUSTERS = pb.EMBEDDING_FIELD_COORDINATES, pb.EMBEDDING_FIELD_CLUSTERS
NONE = pb.EmbeddingParameters(closure=pb.LINK_CLOSURE_NONE)
FEW_STEPS = pb.EmbeddingParameters(max_iter=2)


@pytest.fixture(scope="module")
def home(service: Service) -> Project:
    return service.project()


@pytest.fixture(scope="module")
def earlier(home: Project) -> pb.Embedding:
    """A map with clusters, links and labels."""
    labels = labels_of({6: "a", 7: "b"})
    return home.embed(X, MUST, CANNOT, labels=labels, n_clusters=3, solver=FEW_STEPS, embedding_id="earlier")


def pairs(array: np.ndarray[Any, Any]) -> set[tuple[int, int]]:
    return {(first, second) for first, second in array.tolist()}


# -- maps --------------------------------------------------------------------------------------------------------------


def test_a_map_and_its_clusters_are_those_of_the_core(home: Project) -> None:
    graph = KNNGraph(n_jobs=1).fit(X)
    expected = ERREmbedding(max_iter=5, n_jobs=1).fit(graph, must_link=MUST, cannot_link=CANNOT)
    found = home.embed(X, MUST, CANNOT, solver=pb.EmbeddingParameters(max_iter=5))
    np.testing.assert_allclose(home.embedding(found.name, COORDINATES), expected.embedding_, rtol=1e-6, atol=1e-9)
    assert (found.point_count, found.component_count, found.cluster_count, found.dimension_count) == (60, 2, 0, 4)
    assert (found.energy, found.iteration_count) == (pytest.approx(expected.energy_), expected.n_iter_)
    assert (found.evaluation_count, found.engine) == (expected.n_evaluations_, expected.engine_)
    assert (found.links.must_link_count, found.links.cannot_link_count) == (2, 2)

    clustering = ERRClustering(3, random_state=0).fit(graph, must_link=MUST, cannot_link=CANNOT)
    found = home.embed(X, MUST, CANNOT, n_components=3, n_clusters=3)
    assert (found.component_count, found.cluster_count) == (3, 3)
    np.testing.assert_array_equal(home.embedding(found.name, CLUSTERS), clustering.labels_)
    assert home.embedding(found.name, CLUSTERS).dtype == np.int32


def test_every_parameter_reaches_the_core(home: Project) -> None:
    given = {"data_weight": 0.5, "lambda2": 0.1, "lambda3": 3.0, "sigma_f": 0.7, "continuation": 2.0, "repulsion": 0.9}
    graph = KNNGraph(n_neighbors=4, space="whitened", n_directions=2, n_jobs=1).fit(X)
    given |= {"link_edges": 0.1, "lambda2_per_link": True, "max_iter": 7, "normalized": False, "n_vectors": 5}
    core = ERREmbedding(
        data_weight=0.5,
        lambda2=0.1 / (len(MUST) + len(CANNOT)),
        sigma_f=(1.4, 0.7),
        repulsion=0.9,
        n_vectors=5,
        link_penalty=LinkPenalty(weight=3.0, loss="squared", closure="two-class", edges=0.1),
        relationship="cauchy",
        max_iter=7,
        normalized=False,
        tol=1e-3,
        n_jobs=1,
    )
    core.fit(graph, must_link=MUST, cannot_link=CANNOT)
    solver = pb.EmbeddingParameters(
        **given,
        closure=pb.LINK_CLOSURE_TWO_CLASS,
        link_loss=pb.LINK_LOSS_SQUARED,
        relationship=pb.RELATIONSHIP_CAUCHY,
        tolerance=1e-3,
    )
    of_graph = model_pb2.GraphParameters(n_neighbors=4, space=model_pb2.SPACE_WHITENED, n_directions=2)
    found = home.embed(X, MUST, CANNOT, solver=solver, graph=of_graph)
    assert found.solver_parameters == solver
    assert found.graph_parameters == of_graph
    np.testing.assert_allclose(home.embedding(found.name, COORDINATES), core.embedding_, rtol=1e-6, atol=1e-9)


def test_each_parameter_of_the_paper_s_form_matters(home: Project) -> None:
    paper = pb.EmbeddingParameters(
        data_weight=1 / 60,
        repulsion=1.0,
        continuation=1.0,
        closure=pb.LINK_CLOSURE_NONE,
        link_edges=0.0,
        link_loss=pb.LINK_LOSS_SQUARED,
        max_iter=3,
        tolerance=0.0,
        n_vectors=2,
    )
    dataset = home.upload(X).name
    places = home.embedding(home.embed(dataset, MUST, CANNOT, solver=paper).name, COORDINATES)
    for field in ("link_edges", "link_loss", "n_vectors"):
        without = pb.EmbeddingParameters()
        without.CopyFrom(paper)
        without.ClearField(field)  # the core's default, then
        others = home.embedding(home.embed(dataset, MUST, CANNOT, solver=without).name, COORDINATES)
        assert not np.allclose(places, others)


def test_a_map_without_n_vectors_goes_on_from_the_spectral_map() -> None:
    before = pb.Embedding(component_count=3, solver_parameters=pb.EmbeddingParameters(lambda3=1.0, max_iter=2))
    found = continued(before, pb.EmbeddingParameters(lambda3=2.0))
    assert found == pb.EmbeddingParameters(lambda3=2.0, max_iter=2, n_vectors=3)
    before.solver_parameters.n_vectors = 8
    assert continued(before, pb.EmbeddingParameters()).n_vectors == 8


@pytest.mark.parametrize("points", [X.astype(np.float32), csr_array(np.maximum(X, 0))], ids=["float32", "csr"])
def test_the_graph_of_points_is_shared_with_models(project: Project, points: Matrix) -> None:
    dataset = project.upload(points).name
    first = project.embed(dataset, MUST, solver=FEW_STEPS)
    assert (first.dataset, first.graph.reused) == (dataset, False)
    assert first.graph.edge_count > 60
    again = project.embed(dataset, CANNOT, solver=FEW_STEPS)
    assert (again.graph.digest, again.graph.reused) == (first.graph.digest, True)
    model = project.model(dataset, {0: 0, 1: 1, 2: 2})
    assert (model.graph.digest, model.graph.reused) == (first.graph.digest, True)
    project.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=dataset))
    of_model = project.embed(model.name, MUST, solver=FEW_STEPS)
    assert (of_model.model, of_model.dataset, of_model.parent_embedding) == (model.name, dataset, "")
    assert (of_model.graph.digest, of_model.graph.reused, of_model.dimension_count) == (first.graph.digest, True, 4)
    np.testing.assert_array_equal(
        project.embedding(of_model.name, COORDINATES), project.embedding(first.name, COORDINATES)
    )


def test_labels_are_links_between_all_of_them(home: Project) -> None:
    labelled = {point: "abc"[TRUTH[point]] for point in range(12)}
    found = home.embed(X, labels=labels_of(labelled), n_clusters=0)
    # Those from which the others follow: all to the first of their class, and the first ones apart.
    assert (found.labelled_count, found.links.must_link_count, found.links.cannot_link_count) == (12, 9, 3)
    assert found.cluster_count == 3
    clusters = home.embedding(found.name, CLUSTERS)
    assert len({(int(TRUTH[point]), int(clusters[point])) for point in range(60)}) == 3
    assert (found.links.divided_must_link_count, found.links.joined_cannot_link_count) == (0, 0)


def test_violated_links_are_counted_and_listed_and_all_of_them_can_be_read(home: Project) -> None:
    # Of two points that belong together and apart, one link is violated, whatever the map.
    contrary = [(first, second) for first in range(60) for second in range(first) if (first + second) % 7 == 0]
    found = home.embed(X, contrary, contrary, solver=NONE, n_clusters=3)
    links = found.links
    assert len(contrary) > 200
    violated = links.violated_must_link_count + links.violated_cannot_link_count
    assert links.must_link_count == links.cannot_link_count == violated == len(contrary)
    assert links.divided_must_link_count + links.joined_cannot_link_count == len(contrary)
    must = home.embedding(found.name, pb.EMBEDDING_FIELD_VIOLATED_MUST_LINKS)
    cannot = home.embedding(found.name, pb.EMBEDDING_FIELD_VIOLATED_CANNOT_LINKS)
    assert (len(must), len(cannot)) == (links.violated_must_link_count, links.violated_cannot_link_count)
    assert len(links.violated.must) == min(100, len(must))
    assert len(links.violated.cannot) == min(100, len(cannot))
    assert [(link.first, link.second) for link in links.violated.must] == [tuple(pair) for pair in must[:100].tolist()]
    assert pairs(must) | pairs(cannot) == {(second, first) for first, second in contrary}
    assert any("contradict each other" in warning for warning in found.warnings)


# -- going on ----------------------------------------------------------------------------------------------------------


def test_more_links_go_on_from_an_earlier_map(home: Project, earlier: pb.Embedding) -> None:
    more = home.embed(
        earlier.name,
        [(8, 11)],
        labels=labels_of({9: "a", 7: "a"}),
        withdrawn=links_of([(1, 4)], [(0, 2)]),
        solver=pb.EmbeddingParameters(lambda3=50.0),
    )
    assert (more.parent_embedding, more.dataset) == (earlier.name, earlier.dataset)
    assert (more.component_count, more.cluster_count, more.labelled_count) == (2, 3, 3)
    assert (more.graph.digest, more.graph.reused) == (earlier.graph.digest, True)
    assert more.solver_parameters == pb.EmbeddingParameters(max_iter=2, lambda3=50.0, n_vectors=8)
    # 7 has changed its class, which leaves one class of 6, 7 and 9.
    assert pairs(home.embedding(more.name, pb.EMBEDDING_FIELD_MUST_LINKS)) == {(0, 3), (8, 11), (6, 9), (7, 9)}
    assert pairs(home.embedding(more.name, pb.EMBEDDING_FIELD_CANNOT_LINKS)) == {(0, 1)}


def test_what_no_link_concerns_stays_where_it_was(home: Project) -> None:
    first = home.embed(X, [(0, 3)], [(0, 1)])
    again = home.embed(first.name)
    before, after = (home.embedding(name, COORDINATES) for name in (first.name, again.name))
    assert np.median(np.linalg.norm(after - before, axis=1)) < 0.02 * before.std()
    assert again.iteration_count <= first.iteration_count


def test_a_map_outlives_the_one_it_was_made_from(project: Project) -> None:
    first = project.embed(X, MUST, CANNOT, solver=FEW_STEPS, n_components=3)
    second = project.embed(first.name, [(6, 9)])
    project.stub.DeleteEmbedding(pb.DeleteEmbeddingRequest(name=first.name))
    third = project.embed(second.name, withdrawn=links_of([(0, 3)]))
    assert (third.parent_embedding, third.component_count, third.links.must_link_count) == (second.name, 3, 2)
    gone = refusal(project.stub.Embed, project.embed_request(first.name))
    assert gone.code is grpc.StatusCode.NOT_FOUND


def test_what_only_the_job_can_know_is_told_by_its_error(home: Project, earlier: pb.Embedding) -> None:
    def violated(**more: Any) -> str:
        links = more.pop("links", ((), ()))
        job = home.ended(home.stub.Embed(home.embed_request(earlier.name, *links, **more)).job)
        assert (job.state, job.error.code) == (job_pb2.JOB_STATE_FAILED, INVALID.value[0]), job
        return job.error.field_violations[0].field

    transitive = pb.EmbeddingParameters(closure=pb.LINK_CLOSURE_TRANSITIVE)
    assert violated(withdrawn=links_of([(0, 3), (9, 12)])) == "withdrawn.must[1]"
    assert violated(links=((), [(8, 5), (3, 0)]), solver=transitive) == "links.cannot[1]"
    assert violated(labels=labels_of({8: 1, 9: 2})) == "labels.classes"


# -- what is refused ---------------------------------------------------------------------------------------------------


def solver(**parameters: Any) -> dict[str, Any]:
    return {"solver": pb.EmbeddingParameters(**parameters)}


TRANSITIVE, TWO_CLASS = pb.LINK_CLOSURE_TRANSITIVE, pb.LINK_CLOSURE_TWO_CLASS


@pytest.mark.parametrize(
    ("field", "links", "more"),
    [
        ("links.must[1]", ([(0, 1), (5, 5)], []), {}),
        ("links.cannot[0]", ([], [(7, 7)]), {}),
        ("links.must[0].second", ([(0, 60)], []), {}),
        ("links.cannot[1].first", ([], [(0, 1), (-1, 2)]), {}),
        ("links", ([(0, 1)] * 101, [(0, 1)] * 100), {}),
        ("links.cannot[1]", ([(0, 1), (2, 1)], [(4, 5), (2, 0)]), solver(closure=TRANSITIVE)),
        ("links", ([], [(0, 1), (1, 2), (2, 0)]), solver(closure=TWO_CLASS)),
        ("links", ([(6, 7)], []), {"labels": labels_of({6: 1, 7: 2}), **solver(closure=TRANSITIVE)}),
        ("withdrawn", ([], []), {"withdrawn": links_of([(0, 1)])}),
        ("labels.points[1]", ([], []), {"labels": labels_of({0: 1, 60: 2})}),
        ("n_components", ([], []), {"n_components": 0}),
        ("n_components", ([], []), {"n_components": 60}),
        ("n_components", ([], []), {"n_components": 101}),
        ("n_clusters", ([], []), {"n_clusters": 1}),
        ("n_clusters", ([], []), {"n_clusters": 60}),
        ("n_clusters", ([], []), {"n_clusters": -1}),
        ("graph.n_neighbors", ([], []), {"graph": model_pb2.GraphParameters(n_neighbors=0)}),
        ("solver.closure", ([], []), solver(closure=9)),
        ("solver.data_weight", ([], []), solver(data_weight=-1.0)),
        ("solver.lambda2", ([], []), solver(lambda2=float("nan"))),
        ("solver.lambda3", ([], []), solver(lambda3=float("inf"))),
        ("solver.sigma_f", ([], []), solver(sigma_f=0.0)),
        ("solver.continuation", ([], []), solver(continuation=0.5)),
        ("solver.repulsion", ([], []), solver(repulsion=-0.1)),
        ("solver.link_edges", ([], []), solver(link_edges=-0.1)),
        ("solver.link_loss", ([], []), solver(link_loss=9)),
        ("solver.relationship", ([], []), solver(relationship=9)),
        ("solver.max_iter", ([], []), solver(max_iter=-1)),
        ("solver.tolerance", ([], []), solver(tolerance=-1.0)),
        ("embedding_id", ([], []), {"embedding_id": "A"}),
        ("options.priority", ([], []), {"options": job_pb2.JobOptions(priority=101)}),
    ],
)
def test_what_is_wrong_is_refused_by_its_field_before_it_is_queued(
    strict: Project, field: str, links: Any, more: dict[str, Any]
) -> None:
    answer = refusal(strict.stub.Embed, strict.embed_request(X, *links, **more))
    assert (answer.code, answer.fields) == (INVALID, [field])
    assert list(strict.stub.ListJobs(job_pb2.ListJobsRequest(parent=strict.name)).jobs) == []


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that computes nothing and takes few links."""
    with running(tmp_path_factory.mktemp("strict"), workers=0, predictors=0, max_links=200) as service:
        yield service.project()


def test_an_example_tells_which_links_contradict_each_other(strict: Project) -> None:
    links = [(0, 1), (1, 2), (3, 2)], [(3, 0)]
    message = refusal(strict.stub.Embed, strict.embed_request(X, *links, **solver(closure=TRANSITIVE))).message
    assert "3 and 0 belong apart, but together by the chain of must-links 3–2–1–0" in message
    ring = strict.embed_request(X, [(4, 5)], [(5, 6), (4, 6), (6, 4)], **solver(closure=TWO_CLASS))
    assert ring.solver.closure == TWO_CLASS
    strict.stub.Embed(ring)  # 4 and 5 apart from 6 is what two classes allow
    odd = strict.embed_request(X, [(4, 5)], [(5, 6), (6, 7), (7, 4)], **solver(closure=TWO_CLASS))
    assert "would be apart from itself" in refusal(strict.stub.Embed, odd).message
    chain = [(point, point + 1) for point in range(50)]
    long = strict.embed_request(X, chain, [(0, 50)], **solver(closure=TRANSITIVE))
    assert "0–1–2–3–4–5–…–45–46–47–48–49–50" in refusal(strict.stub.Embed, long).message


def test_sources_are_checked_as_well(home: Project, project: Project, earlier: pb.Embedding) -> None:
    def fields(request: job_pb2.EmbedRequest) -> list[str]:
        return refusal(home.stub.Embed, request).fields

    assert fields(job_pb2.EmbedRequest(parent=home.name)) == ["points"]
    assert fields(home.embed_request(earlier.name, n_components=3)) == ["n_components"]
    assert fields(home.embed_request(earlier.name, graph=model_pb2.GraphParameters(n_neighbors=5))) == ["graph"]
    assert fields(home.embed_request(earlier.name, [(0, 60)])) == ["links.must[0].second"]
    assert fields(project.embed_request(earlier.name)) == ["embedding"]
    assert fields(home.embed_request(f"{project.name}/models/m")) == ["model"]
    assert fields(home.embed_request(f"{project.name}/datasets/d")) == ["dataset"]
    for kind in ("datasets", "models", "embeddings"):
        answer = refusal(home.stub.Embed, home.embed_request(f"{home.name}/{kind}/none"))
        assert answer.code is grpc.StatusCode.NOT_FOUND
    taken = refusal(home.stub.Embed, home.embed_request(X, embedding_id="earlier"))
    assert taken.code is grpc.StatusCode.ALREADY_EXISTS


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_the_same_key_is_the_same_job_though_its_source_is_gone(project: Project) -> None:
    first = project.embed(X, MUST, solver=FEW_STEPS)
    request = project.embed_request(first.name, CANNOT, options=job_pb2.JobOptions(request_id="k"), embedding_id="e")
    job = project.ended(project.stub.Embed(request).job)
    assert job.embed.embedding.name == f"{project.name}/embeddings/e"
    project.stub.DeleteEmbedding(pb.DeleteEmbeddingRequest(name=first.name))
    assert project.stub.Embed(request).job.name == job.name
    request.links.must.add(first=0, second=9)
    assert refusal(project.stub.Embed, request).code is grpc.StatusCode.ALREADY_EXISTS


def test_a_watch_sees_energies_and_the_embedding(project: Project) -> None:
    name = project.stub.Embed(project.embed_request(X, MUST, CANNOT, n_clusters=2)).job.name
    seen = list(project.stub.WatchJob(job_pb2.WatchJobRequest(name=name), timeout=PATIENCE))
    phases = [response.event.progress.phase for response in seen if response.event.HasField("progress")]
    assert list(dict.fromkeys(phases)) == ["load", "graph", "solve", "cluster", "save"]
    job = seen[-1].job
    assert (job.kind, job.state) == (job_pb2.JOB_KIND_EMBED, job_pb2.JOB_STATE_SUCCEEDED)
    assert set(job.embed.embedding.seconds) == {"load", "graph", "solve", "cluster", "save"}
    assert job.embed.embedding.size_bytes > 60 * 2 * 8


def slow(project: Project, **options: Any) -> job_pb2.EmbedRequest:
    """A map that would take minutes."""
    points = np.random.default_rng(1).normal(size=(3000, 5))
    steps = pb.EmbeddingParameters(max_iter=100_000, tolerance=0.0)
    return project.embed_request(points, MUST, solver=steps, options=job_pb2.JobOptions(**options))


def test_a_running_map_tells_its_energy_and_is_cancelled(project: Project) -> None:
    name = project.stub.Embed(slow(project)).job.name
    get = job_pb2.GetJobRequest(name=name)
    eventually(lambda: project.stub.GetJob(get).job.progress.iteration > 3)
    assert project.stub.GetJob(get).job.progress.energy > 0
    assert project.stub.GetJob(get).job.progress.max_iterations > 100
    project.stub.CancelJob(job_pb2.CancelJobRequest(name=name))
    assert project.ended(project.stub.GetJob(get).job).state == job_pb2.JOB_STATE_CANCELLED
    assert list(project.stub.ListEmbeddings(pb.ListEmbeddingsRequest(parent=project.name)).embeddings) == []


def test_a_map_has_a_time_limit(project: Project) -> None:
    job = project.ended(project.stub.Embed(slow(project, time_limit=seconds(1.0))).job)
    assert (job.state, job.error.reason) == (job_pb2.JOB_STATE_FAILED, "TIME_LIMIT")


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_embeddings_are_got_listed_and_deleted(service: Service, project: Project) -> None:
    made = [project.embed(X, MUST, solver=FEW_STEPS, embedding_id=f"e{number}") for number in range(3)]
    stub = project.stub
    assert stub.GetEmbedding(pb.GetEmbeddingRequest(name=made[0].name)).embedding == made[0]
    page = stub.ListEmbeddings(pb.ListEmbeddingsRequest(parent=project.name, page_size=2))
    token = page.next_page_token
    rest = stub.ListEmbeddings(pb.ListEmbeddingsRequest(parent=project.name, page_size=2, page_token=token))
    assert [*page.embeddings, *rest.embeddings] == made[::-1]
    folder = service.settings.data_dir / "blobs" / "embeddings" / project.id
    assert len(list(folder.iterdir())) == 3
    stub.DeleteEmbedding(pb.DeleteEmbeddingRequest(name=made[0].name))
    gone = refusal(stub.GetEmbedding, pb.GetEmbeddingRequest(name=made[0].name))
    assert gone.code is grpc.StatusCode.NOT_FOUND
    assert refusal(stub.ReadEmbedding, pb.ReadEmbeddingRequest(name=made[0].name)).code is gone.code
    assert len([path for path in folder.rglob("coordinates.npy") if path.is_file()]) == 2


def test_a_map_whose_arrays_are_lost_is_told_of_as_lost(service: Service, project: Project) -> None:
    made = project.embed(X, [(0, 2)], [(0, 1)])
    shutil.rmtree(service.settings.data_dir / "blobs" / "embeddings" / project.id)
    answer = refusal(project.stub.ReadEmbedding, pb.ReadEmbeddingRequest(name=made.name))
    assert answer.code is grpc.StatusCode.DATA_LOSS
    assert "homophily fsck" in answer.message
    more = job_pb2.EmbedRequest(parent=project.name, embedding=made.name, links=links_of([(1, 3)]))
    assert project.ended(project.stub.Embed(more).job).error.code == grpc.StatusCode.DATA_LOSS.value[0]


def test_large_arrays_come_in_ranges(service: Service, project: Project) -> None:
    name, path = EmbeddingName(project.id, "large"), f"embeddings/{project.id}/large/x"
    coordinates = np.random.default_rng(0).normal(size=(200_000, 2))
    message = pb.Embedding(name=str(name), point_count=200_000, component_count=2)
    stores = open_stores(service)
    stores.blobs.write(path, {"coordinates": coordinates, "must_links": np.empty((0, 2), np.int64)}, {})
    with stores.database.write() as connection:
        stores.catalog.add(connection, name, message.SerializeToString(), path)
    stores.close()
    answers = list(project.stub.ReadEmbedding(pb.ReadEmbeddingRequest(name=str(name))))
    assert len(answers) == 4
    assert {answer.total for answer in answers} == {200_000}
    assert max(answer.ByteSize() for answer in answers) < 1.1 * 2**20
    np.testing.assert_array_equal(project.embedding(str(name), COORDINATES), coordinates)
    part = project.embedding(str(name), COORDINATES, start=65_530, count=10)
    np.testing.assert_array_equal(part, coordinates[65_530:65_540])
    assert project.embedding(str(name), COORDINATES, start=200_000).shape == (0, 2)
    assert project.embedding(str(name), pb.EMBEDDING_FIELD_MUST_LINKS).shape == (0, 2)

    def fields(**more: Any) -> list[str]:
        return refusal(project.stub.ReadEmbedding, pb.ReadEmbeddingRequest(name=str(name), **more)).fields

    assert fields(start=200_001) == fields(start=-1) == ["start"]
    assert fields(count=-1) == ["count"]
    assert fields(field=9) == ["field"]
    without = refusal(project.stub.ReadEmbedding, pb.ReadEmbeddingRequest(name=str(name), field=CLUSTERS))
    assert (without.code, without.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_CLUSTERS")
