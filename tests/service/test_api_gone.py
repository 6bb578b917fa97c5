"""Callers that go away in the middle of a stream, and labels that turn around."""

from __future__ import annotations

import numpy as np

from homophily_client._pb import job_pb2 as pb
from homophily_client._pb import model_pb2

from .serving import PATIENCE, Project, Service

RNG = np.random.default_rng(0)
TRUTH = np.arange(200) % 2
X = RNG.normal(size=(200, 3)) + 12 * TRUTH[:, None]


def test_callers_that_leave_a_watch_at_its_end_do_not_end_the_server(service: Service, project: Project) -> None:
    # Asking a call that is gone for its peer ended the process, mostly within fifty such calls.
    job = project.fit(X, {0: 0, 1: 1})
    for after in range(300):
        watch = project.stub.WatchJob(pb.WatchJobRequest(name=job.name, after_sequence=after % 5), timeout=PATIENCE)
        next(watch)
        watch.cancel()
    assert service.process.poll() is None
    assert project.stub.GetJob(pb.GetJobRequest(name=job.name), timeout=PATIENCE).job.state == pb.JOB_STATE_SUCCEEDED


def test_swapped_labels_swap_the_answers(project: Project) -> None:
    # ERR's relationships are the same after a swap: started from the old solution, it would stay there.
    model = project.model(X, {0: 0, 1: 1})
    swapped = project.transduce(model.name, {0: 1, 1: 0})
    fresh = project.model(X, {0: 1, 1: 0})
    answers, expected = (
        project.solution(name, model_pb2.SOLUTION_FIELD_VALUES)[0]
        for name in (swapped.transduce.model.name, fresh.name)
    )
    np.testing.assert_allclose(answers, expected, atol=1e-8)
    assert swapped.transduce.changed_point_count == len(X)
