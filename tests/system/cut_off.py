"""Cuts the network of a worker for longer than its lease, and restores it: `make machines-net`, as root.

It is not part of `make test`, as it creates network namespaces. The service is on one side of a bridge, one
worker in a namespace of its own on the other; between them are real TCP connections, which a link that goes down
neither closes nor refuses.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import pytest
from sqlalchemy import Row

from homophily_client._pb.job_pb2 import FitResult
from homophily_client._pb.model_pb2 import Model
from homophily_client.names import ModelName
from homophily_service.contract import states

from ..service.databases import Postgres
from .conftest import S3, MakeCluster
from .harness import Cluster, Process, eventually, fit_request, free_port, signal_to

# Reserved for tests of networks (RFC 2544).
ADDRESS, FAR_ADDRESS, PREFIX = "198.18.97.1", "198.18.97.2", 24
MISSING = 3
# What a worker logs about a refused write, and about a result that it cannot record yet.
LOST, LATE_RESULT = "the lease is lost", "waiting for the database"


class Link(NamedTuple):
    """The link between the two sides."""

    namespace: str
    device: str

    @property
    def within(self) -> tuple[str, ...]:
        """The prefix of commands that run on the far side."""
        return "ip", "netns", "exec", self.namespace

    def cut(self) -> None:
        """Cut the link, as if the cable was pulled: nobody is notified."""
        ip("link", "set", self.device, "down")

    def heal(self) -> None:
        ip("link", "set", self.device, "up")

    def reaches(self) -> bool:
        """Whether the far side can connect to Postgres."""
        connect = f"import socket; socket.create_connection(({ADDRESS!r}, 5432), 2)"
        command = [*self.within, "python3", "-c", connect]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    """A namespace behind a bridge; if that is not possible, pytest exits with 3 and the reason."""
    if shutil.which("ip") is None:
        pytest.exit("Machines cannot be cut off here: ip is not found (apt-get install iproute2)", MISSING)
    if os.geteuid() != 0:
        pytest.exit("Machines cannot be cut off here: network namespaces are made by root", MISSING)
    tag = secrets.token_hex(3)
    bridge, near, far, namespace = (f"hph{kind}{tag}" for kind in ("b", "n", "f", "s"))
    try:
        try:
            ip("netns", "add", namespace)
            ip("link", "add", bridge, "type", "bridge")
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)
        except subprocess.CalledProcessError as error:
            pytest.exit(f"Machines cannot be cut off here: {error.stderr.strip()}", MISSING)
        ip("address", "add", f"{ADDRESS}/{PREFIX}", "dev", bridge)
        ip("link", "set", near, "master", bridge)
        for device in (bridge, near):
            ip("link", "set", device, "up")
        inside = ("-n", namespace)
        ip(*inside, "address", "add", f"{FAR_ADDRESS}/{PREFIX}", "dev", far)
        for device in ("lo", far):
            ip(*inside, "link", "set", device, "up")
        yield Link(namespace, near)
    finally:
        for command in (("link", "delete", near), ("link", "delete", bridge), ("netns", "delete", namespace)):
            subprocess.run(["ip", *command], check=False, capture_output=True)


class ReachablePostgres(Postgres):
    """A server that listens on the bridge too."""

    SETTINGS: ClassVar[dict[str, Any]] = Postgres.SETTINGS | {"listen_addresses": ADDRESS}

    def start(self) -> None:
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {ADDRESS}/{PREFIX} trust\n")
        super().start()

    def new_database(self) -> str:
        """The URL of an empty database, by its address."""
        name = super().new_database().partition("@/")[2].partition("?")[0]
        return f"postgresql+psycopg://postgres@{ADDRESS}/{name}"


@pytest.fixture(scope="module")
def postgres(link: Link) -> Iterator[Postgres]:
    assert link
    server = ReachablePostgres()
    yield server
    server.close()


@pytest.fixture
def s3_host(link: Link) -> str:
    assert link
    return ADDRESS


def test_a_worker_that_is_cut_off_loses_its_job_writes_nothing_late_and_works_again(
    link: Link, make_cluster: MakeCluster, postgres: Postgres, s3: S3
) -> None:
    cluster = make_cluster(database_url=postgres.new_database(), blobs_url=s3.url)
    other_port = free_port()
    cluster.serve(data_dir=cluster.folder / "api-0")
    cluster.serve(data_dir=cluster.folder / "api-1", port=other_port)
    here, there = cluster.client(), cluster.client(other_port)
    far = cluster.worker(link.within, data_dir=cluster.folder / "far")
    cluster.ended(cluster.submit())

    # A job that needs no store: its result is there while the link is down, and comes late.
    done = done_elsewhere(cluster, link, far, lambda: str(cluster.submit()), LATE_RESULT)
    # A fit, whose points the cut worker cannot even read.
    done = done_elsewhere(cluster, link, far, lambda: here.submit("Fit", fit_request(0)), "the database is down")
    result = FitResult.FromString(done.outcome)
    (model,), _ = cluster.stores.catalog.page(ModelName.collection, "default")
    assert Model.FromString(model.message) == result.model
    assert (here.solution(result.model.name) == there.solution(result.model.name)).all()

    # Alone again, it works as if nothing had happened.
    last = there.submit("Fit", fit_request(1))
    done = cluster.ended(last)
    assert (done.state, done.attempt) == (states.SUCCEEDED, 1)
    assert is_by(done, far)
    assert cluster.exceptions() == []


def done_elsewhere(cluster: Cluster, link: Link, far: Process, submit: Callable[[], str], silence: str) -> Row[Any]:
    """Cut the far worker off in the middle of a job, have others do it, and heal the link; returns the job's row."""
    refused = far.log.read_text().count(LOST)
    child = cluster.child_of(far)
    # So that it is in the middle, however fast the machine is.
    signal_to(child, signal.SIGSTOP)
    name = submit()
    eventually("the far worker has the job", lambda: cluster.is_running_job(name))
    told = far.log.read_text().count(silence)

    link.cut()
    assert not link.reaches()
    near = [cluster.worker(data_dir=cluster.folder / f"near-{number}") for number in range(2)]
    done = cluster.ended(name)
    assert (done.state, done.attempt) == (states.SUCCEEDED, 2)
    assert not is_by(done, far)
    signal_to(child, signal.SIGCONT)
    eventually("the far worker is without its database", lambda: far.log.read_text().count(silence) > told)
    assert far.log.read_text().count(LOST) == refused

    link.heal()
    eventually("its late write is refused", lambda: far.log.read_text().count(LOST) > refused)
    # Nothing of it is left: tracking, which would come later, is off here.
    assert cluster.job(name) == done
    cluster.has_one_end(name)
    for worker in near:
        worker.terminate()
        assert worker.exit_code() == 0
    return done


def is_by(job: Row[Any], worker: Process) -> bool:
    return str(job.worker).endswith(f"-{worker.pid}")
