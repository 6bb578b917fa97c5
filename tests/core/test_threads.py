"""Threads, processes and the libraries that bring threads of their own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sklearn.datasets import make_moons
from threadpoolctl import threadpool_info, threadpool_limits

from homophily import ERRClassifier
from homophily.threads import single_threaded_blas

from ..patience import COMPUTING_SECONDS

FORK = """
import os, warnings
import numpy as np
from homophily import KNNGraph
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(500, 8))
here = KNNGraph().fit(X).indices_
child = os.fork()
if child == 0:
    os._exit(0 if (KNNGraph().fit(X).indices_ == here).all() else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_a_forked_child_can_search_neighbours():
    assert subprocess.run([sys.executable, "-c", FORK], timeout=COMPUTING_SECONDS, check=False).returncode == 0


def test_blas_has_its_threads_back_when_the_last_user_leaves():
    with threadpool_limits(2):
        one, other = single_threaded_blas(), single_threaded_blas()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert set(blas_threads()) == {1}
        other.__exit__(None, None, None)
        assert set(blas_threads()) == {2}


def test_fits_at_the_same_time_give_the_answers_of_fits_in_turn():
    X, y = make_moons(300, noise=0.1, random_state=0)
    y = np.where(np.arange(300) < 20, y, -1)

    def fit(power):
        return ERRClassifier(power=power).fit(X, y).solution_

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fit, [1, 2, 1, 2]))
    for power, solution in zip([1, 2, 1, 2], together, strict=True):
        assert (solution == fit(power)).all()
