"""Who gets in where it matters: certificates, tokens that expire, quotas, and the record of who did what."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography import x509
from prometheus_client import REGISTRY

from homophily_client import Client, LimitExceeded, Unauthenticated, Unavailable
from homophily_client._pb import dataset_pb2, job_pb2
from homophily_client._pb.homophily_service_pb2_grpc import HomophilyServiceStub
from homophily_service.api import server as server_module
from homophily_service.api.audit import note, start_audit
from homophily_service.api.server import Server
from homophily_service.api.tls import Certificates, server_credentials
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.runtime.settings import load_settings

from .certificates import Certificate, authority, signed_by
from .commands import Run
from .serving import PATIENCE, Project, Service, eventually, open_stores, refusal, running

UNAVAILABLE, UNAUTHENTICATED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED, NOT_FOUND = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND
X = np.random.default_rng(0).normal(size=(60, 3))
LABELS = {0: "a", 1: "b"}
ABOUT_NOTHING = job_pb2.GetJobRequest(name="projects/mine/jobs/none")
# A project with more limits than others.
LIMITS = {"few": {"max_jobs_per_day": 2}, "small": {"max_project_bytes": 3000}}


@dataclass
class Trust:
    """The CAs and files of a server."""

    folder: Path
    servers: Certificate
    clients: Certificate

    @property
    def files(self) -> dict[str, Any]:
        """Settings of mutual TLS."""
        paths = {"tls_certificate": "server.pem", "tls_key": "server.key", "tls_client_ca": "clients.pem"}
        return {name: self.folder / file for name, file in paths.items()}

    def shown(self, certificate: Certificate | None, ca: Certificate | None = None) -> grpc.ChannelCredentials:
        """Credentials of a client that shows a certificate, or none."""
        more = {}
        if certificate is not None:
            more = {"private_key": certificate.key_pem, "certificate_chain": certificate.pem}
        return grpc.ssl_channel_credentials((ca or self.servers).pem, **more)


def make_trust(folder: Path) -> Trust:
    trust = Trust(folder, authority("CA of servers"), authority("CA of clients"))
    trust.servers.write(folder, "servers")
    trust.clients.write(folder, "clients")
    signed_by(trust.servers, "the server").write(folder, "server")
    signed_by(trust.clients, "a client").write(folder, "client")
    return trust


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return make_trust(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def guarded(trust: Trust, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server that wants a certificate and a token, and writes down who did what."""
    data_dir = tmp_path_factory.mktemp("guarded")
    settings = {"workers": 0, "predictors": 0, "auth": "tokens", "audit_file": data_dir / "audit" / "log"}
    mine = trust.shown(signed_by(trust.clients, "the tests"))
    with running(data_dir, mine, **settings, **trust.files, project_limits=LIMITS) as service:
        yield service


def asked(service: Service, credentials: grpc.ChannelCredentials, **more: Any) -> grpc.RpcError:
    """How a call about nothing fails that shows these."""
    stub = HomophilyServiceStub(service.channel(credentials=credentials))
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetJob(ABOUT_NOTHING, timeout=PATIENCE, **more)
    return caught.value


def bearer(secret: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {secret}")]


def audit(service: Service) -> list[dict[str, Any]]:
    file = service.settings.audit_file
    assert file is not None
    return [json.loads(line) for line in file.read_text().splitlines()]


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["none", "expired", "of another CA", "of the servers' CA", "of itself"])
def test_without_a_good_certificate_not_even_a_good_token_is_looked_at(
    guarded: Service, trust: Trust, wrong: str
) -> None:
    """The handshake ends it: there is no HTTP/2 yet in which a code could be told, so the channel says UNAVAILABLE."""
    certificate = {
        "none": lambda: None,
        "expired": lambda: signed_by(trust.clients, "late", hours=-1),
        "of another CA": lambda: signed_by(authority("CA of clients"), "a stranger"),
        "of the servers' CA": lambda: signed_by(trust.servers, "a server"),
        "of itself": lambda: authority("nobody"),
    }[wrong]()
    marked = ("x-request-id", f"refused-{wrong.replace(' ', '-')}")
    error: Any = asked(guarded, trust.shown(certificate), metadata=[*bearer(guarded.token("mine")), marked])
    assert error.code() is UNAVAILABLE
    assert marked[1] not in guarded.log.read_text() + json.dumps(audit(guarded))


def test_who_speaks_no_tls_is_not_heard(guarded: Service) -> None:
    with grpc.insecure_channel(guarded.target) as channel, pytest.raises(grpc.RpcError) as caught:
        HomophilyServiceStub(channel).GetJob(ABOUT_NOTHING, timeout=PATIENCE, metadata=bearer(guarded.token("mine")))
    assert caught.value.code() is UNAVAILABLE


def test_a_client_does_not_talk_to_a_server_of_another_ca(guarded: Service, trust: Trust) -> None:
    mine = signed_by(trust.clients, "a client")
    error: Any = asked(guarded, trust.shown(mine, ca=authority("another CA")))
    assert error.code() is UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in error.details()


def test_with_a_certificate_the_token_counts_and_permission_goes_before_existence(guarded: Service) -> None:
    stub = guarded.project().stub
    stores = open_stores(guarded)
    late = stores.tokens.create("mine", expires_seconds=0.001)[1]
    stores.close()
    time.sleep(0.01)
    for secret, code, reason in (
        ("", UNAUTHENTICATED, "NO_VALID_TOKEN"),
        ("hph_wrong", UNAUTHENTICATED, "NO_VALID_TOKEN"),
        (late, UNAUTHENTICATED, "TOKEN_EXPIRED"),
        (guarded.token("theirs"), PERMISSION_DENIED, "OTHER_PROJECT"),
        (guarded.token("mine"), NOT_FOUND, "NOT_FOUND"),
        (guarded.token("*"), NOT_FOUND, "NOT_FOUND"),
    ):
        answer = refusal(stub.GetJob, ABOUT_NOTHING, metadata=bearer(secret) if secret else None)
        assert (answer.code, answer.reason) == (code, reason)


def test_a_token_that_expires_while_it_is_used_stops_working_at_once(guarded: Service) -> None:
    stores = open_stores(guarded)
    secret = stores.tokens.create("mine", expires_seconds=1.0)[1]
    stores.close()
    made = time.monotonic()
    stub = guarded.project().stub
    codes: list[str] = []
    while "TOKEN_EXPIRED" not in codes and time.monotonic() < made + 10.0:
        codes.append(refusal(stub.GetJob, ABOUT_NOTHING, metadata=bearer(secret)).reason)
        time.sleep(0.02)
    assert codes[0] == "NOT_FOUND"
    # Sooner than what is remembered of other tokens.
    assert time.monotonic() - made < 1.9


# -- renewal -----------------------------------------------------------------------------------------------------------


def served(service: Service) -> int:
    """The number of the certificate that the server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = service.target.rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)), PATIENCE)) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def test_certificates_are_renewed_without_a_restart(tmp_path: Path) -> None:
    trust = make_trust(tmp_path / "trust")
    first = x509.load_pem_x509_certificate((trust.folder / "server.pem").read_bytes()).serial_number
    mine = trust.shown(signed_by(trust.clients, "the tests"))
    settings = {"workers": 0, "predictors": 0, **trust.files}
    with running(tmp_path / "data", mine, **settings) as service:
        assert served(service) == first
        old = service.project().stub
        assert refusal(old.GetJob, ABOUT_NOTHING).code is NOT_FOUND
        second = signed_by(trust.servers, "the server")
        # As it happens: the certificate is there before its key is, and then the old pair serves on.
        (trust.folder / "server.pem").write_bytes(second.pem)
        assert served(service) == first
        assert served(service) == first
        second.write(trust.folder, "server")
        assert served(service) == second.number
        # A connection that is open stays; a new one trusts the same CA.
        assert refusal(old.GetJob, ABOUT_NOTHING).code is NOT_FOUND
        assert refusal(service.project().stub.GetJob, ABOUT_NOTHING).code is NOT_FOUND
        (trust.folder / "server.key").write_bytes(b"")
        assert served(service) == second.number
        second.write(trust.folder, "server")
        # Other CAs of clients: those of the old one are strangers now.
        clients = authority("CA of clients, 2")
        clients.write(trust.folder, "clients")
        theirs = HomophilyServiceStub(service.channel(credentials=trust.shown(signed_by(clients, "new"))))
        assert refusal(theirs.GetJob, ABOUT_NOTHING).code is NOT_FOUND
        assert asked(service, mine).code() is UNAVAILABLE  # type: ignore[attr-defined]
        log = service.log.read_text()
    assert log.count("the TLS files have changed; the new ones are in use") == 2
    # Told once for each state of the files, however many handshakes there are.
    assert log.count("the TLS files have changed, but the old ones stay in use") == 2


def test_a_connection_is_made_anew_now_and_then_and_no_call_is_lost(
    trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a CA that is trusted no longer, or a certificate that has run out, does not live on for ever."""
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.2)
    handshakes: list[float] = []
    newer = Certificates.newer

    def counted(self: Certificates) -> Any:
        handshakes.append(time.monotonic())
        return newer(self)

    monkeypatch.setattr(Certificates, "newer", counted)
    ca, certificate, key = (trust.folder / name for name in ("servers.pem", "client.pem", "client.key"))

    def ask(port: int) -> int:
        with Client(f"127.0.0.1:{port}", ca=ca, certificate=certificate, key=key) as client:
            calls = 0
            while len(handshakes) < 4 and calls < 100_000:
                assert list(client.list_datasets()) == []
                calls += 1
        return calls

    async def serve() -> int:
        server = Server(load_settings(data_dir=tmp_path, port=0, predictors=0, **trust.files))
        port = await server.start()
        try:
            return await asyncio.to_thread(ask, port)
        finally:
            await server.stop()

    calls = asyncio.run(serve())
    assert len(handshakes) >= 4
    assert calls > len(handshakes)


@pytest.mark.parametrize("wrong", ["no key", "no certificate", "only a CA", "missing", "other key", "no PEM", "no CA"])
def test_files_that_are_no_good_are_told_before_the_server_starts(trust: Trust, tmp_path: Path, wrong: str) -> None:
    files = trust.files
    broken = tmp_path / "broken"
    broken.write_bytes(b"-----BEGIN")
    match wrong:
        case "no key":
            del files["tls_key"]
        case "no certificate":
            del files["tls_certificate"]
        case "only a CA":
            del files["tls_key"], files["tls_certificate"]
        case "missing":
            files["tls_key"] = tmp_path / "nothing"
        case "other key":
            files["tls_key"] = trust.folder / "client.key"
        case "no PEM":
            files["tls_certificate"] = broken
        case "no CA":
            files["tls_client_ca"] = broken
    with pytest.raises(FailedPrecondition, match="TLS"):
        Server(load_settings(data_dir=tmp_path / "data", **files))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o440, False), (0o644, True), (0o660, True)])
def test_a_key_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, told: bool
) -> None:
    trust = make_trust(tmp_path)
    (tmp_path / "server.key").chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert server_credentials(load_settings(data_dir=tmp_path, **trust.files)) is not None
    assert ("only its owner should read it" in caplog.text) == told


# -- the client and the command line -----------------------------------------------------------------------------------


def test_the_client_takes_files(guarded: Service, trust: Trust) -> None:
    ca, mine, key = (trust.folder / name for name in ("servers.pem", "client.pem", "client.key"))
    with Client(
        guarded.target, token=guarded.token("mine"), project="mine", ca=ca, certificate=mine, key=key
    ) as client:
        assert list(client.list_datasets()) == []
    with (
        Client(guarded.target, token="hph_wrong", ca=ca, certificate=mine, key=key) as client,
        pytest.raises(Unauthenticated),
    ):
        list(client.list_datasets())
    # The CAs of the web do not know this server.
    with Client(guarded.target, tls=True, patience=0.0) as client, pytest.raises(Unavailable, match="handshake failed"):
        list(client.list_datasets())


@pytest.mark.parametrize("given", [{"certificate": "c"}, {"key": "k"}, {"tls": True, "credentials": True}])
def test_half_of_a_certificate_is_refused(given: dict[str, Any]) -> None:
    if "credentials" in given:
        given = given | {"credentials": grpc.ssl_channel_credentials()}
    with pytest.raises(ValueError, match=r"together|either"):
        Client("localhost:1", **given)


def test_commands_take_the_same_files(run: Run, guarded: Service, trust: Trust) -> None:
    files = {"--ca": "servers.pem", "--certificate": "client.pem", "--key": "client.key"}
    options = [word for option, name in files.items() for word in (option, trust.folder / name)]
    assert "SERVING" in run("health", "--target", guarded.target, *options).out
    run("health", "--target", guarded.target, "--timeout", "0.5", code=3)
    secret = guarded.token("mine")
    run("jobs", "--target", guarded.target, "--token", secret, "--project", "mine", *options)


def test_tokens_made_by_command_expire(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "audit"
    place = ("--data-dir", tmp_path / "data", "--set", f"audit_file={log}")
    run("migrate", *place)
    made = run("token", "create", "--project", "mine", "--expires", "30d", "--json", *place).json
    [row] = run("token", "list", "--json", *place).json
    assert row["expires"] - row["created"] == pytest.approx(30 * 86400, abs=1.0)
    assert f"{time.gmtime(row['expires']).tm_year}-" in run("token", "list", *place).out
    assert run("token", "revoke", made["id"], "--json", *place).json == {"revoked": made["id"]}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["message"], line["token"]) for line in lines] == [
        ("token created", made["id"]),
        ("token revoked", made["id"]),
    ]
    assert all(line["user"] for line in lines)
    assert made["token"] not in log.read_text()
    for wrong in ("30", "d", "-1d", "1.5h", "0d", "9999999w"):
        run("token", "create", "--expires", wrong, *place, code=2)


# -- who did what ------------------------------------------------------------------------------------------------------


def test_the_audit_log_tells_who_did_what(guarded: Service) -> None:
    stores = open_stores(guarded)
    identifier, secret = stores.tokens.create("audited")
    stores.close()
    project = Project(guarded.project().stub, "audited")

    def told(request_id: str, count: int = 1) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [line for line in audit(guarded) if line.get("request_id") == request_id]

        return list(eventually(lambda: len(found()) >= count and found(), seconds=10.0))

    def metadata(request_id: str, token: str = secret) -> list[tuple[str, str]]:
        return [*bearer(token), ("x-request-id", request_id)]

    job = project.stub.Fit(project.fit_request(X, LABELS), metadata=metadata("a-fit"), timeout=PATIENCE).job
    [line] = told("a-fit")
    assert line["time"]
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert {key: line[key] for key in ("method", "code", "token", "certificate", "project", "resource", "made")} == {
        "method": "Fit",
        "code": "OK",
        "token": identifier,
        "certificate": "CN=the tests",
        "project": "audited",
        "resource": "projects/audited",
        "made": job.name,
    }
    # Looking is not told, unless it is refused.
    project.stub.GetJob(job_pb2.GetJobRequest(name=job.name), metadata=metadata("a-look"), timeout=PATIENCE)
    theirs = job_pb2.GetJobRequest(name="projects/theirs/jobs/x")
    refusal(project.stub.GetJob, theirs, metadata=metadata("a-try"))
    [line] = told("a-try")
    assert (line["code"], line["token"], line["resource"]) == (
        "PERMISSION_DENIED",
        identifier,
        "projects/theirs/jobs/x",
    )
    refusal(project.stub.GetJob, theirs, metadata=metadata("a-guess", "hph_guessed"))
    [line] = told("a-guess")
    assert line["code"] == "UNAUTHENTICATED"
    assert "token" not in line
    project.stub.CancelJob(job_pb2.CancelJobRequest(name=job.name), metadata=metadata("a-stop"), timeout=PATIENCE)
    [line] = told("a-stop")
    assert (line["method"], line["resource"]) == ("CancelJob", job.name)
    whole = json.dumps(audit(guarded))
    assert "a-look" not in whole

    # It is in the log of all calls, with the same names.
    def calls() -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in guarded.log.read_text().splitlines() if '"a-look"' in line)
        return [line for line in lines if line["message"] == "call"]

    [line] = eventually(calls, seconds=10.0)
    assert line["method"].endswith("/GetJob")
    assert {key: line[key] for key in ("code", "token", "project", "resource")} == {
        "code": "OK",
        "token": identifier,
        "project": "audited",
        "resource": job.name,
    }
    # Neither in the audit log nor in the other one is there a secret, good or bad.
    for text in (whole, guarded.log.read_text()):
        assert secret not in text
        assert "hph_" not in text
    file = guarded.settings.audit_file
    assert file is not None
    assert file.stat().st_mode & 0o777 == 0o600


def test_reads_name_their_token_also_where_no_audit_log_is_kept(tmp_path: Path) -> None:
    with running(tmp_path, auth="tokens", audit="off", workers=0, predictors=0) as service:
        stores = open_stores(service)
        identifier, secret = stores.tokens.create("mine")
        stores.close()
        refusal(service.project(secret).stub.GetJob, ABOUT_NOTHING)
        lines = eventually(
            lambda: [line for line in service.log.read_text().splitlines() if "/GetJob" in line], seconds=10.0
        )
        fields = json.loads(lines[0])
        assert (fields["code"], fields["token"], fields["project"]) == ("NOT_FOUND", identifier, "mine")


def failures() -> float:
    return REGISTRY.get_sample_value("homophily_audit_failures_total") or 0.0


def test_an_audit_line_that_the_disk_does_not_take_is_on_standard_error(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = failures()
    # Every write to this device fails as on a full disk.
    stop = start_audit(load_settings(audit_file="/dev/full"))
    for action in ("first", "second"):
        note(action, token="t1")
    stop()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "homophily.audit" in line]
    assert [(line["message"], line["token"]) for line in lines] == [("first", "t1"), ("second", "t1")]
    assert failures() == before + 2
    assert "No space left on device" in caplog.text


def test_a_disk_that_has_room_again_gets_whole_audit_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.log"
    stop = start_audit(load_settings(audit_file=file))
    note("before")

    def cut_off(_: object) -> None:
        with file.open("a") as end:
            end.write('{"half of')
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(WatchedFileHandler, "reopenIfNeeded", cut_off)
        note("meanwhile")
    note("after")
    stop()
    before, half, after = file.read_text().splitlines()
    assert [json.loads(line)["message"] for line in (before, after)] == ["before", "after"]
    assert half == '{"half of'
    assert '"meanwhile"' in capsys.readouterr().err


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_a_project_has_so_many_jobs_a_day_and_deleting_them_does_not_help(guarded: Service, trust: Trust) -> None:
    stub = guarded.project().stub
    few, mine = Project(stub, "few"), bearer(guarded.token("few"))
    asked_for = few.fit_request(X, LABELS, options=job_pb2.JobOptions(request_id="the-first"))
    first = stub.Fit(asked_for, metadata=mine, timeout=PATIENCE).job
    stub.Fit(few.fit_request(X, LABELS), metadata=mine, timeout=PATIENCE)
    stub.CancelJob(job_pb2.CancelJobRequest(name=first.name), metadata=mine, timeout=PATIENCE)
    answer = refusal(stub.Fit, few.fit_request(X, LABELS), metadata=mine)
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "JOBS_PER_DAY")
    assert "2 jobs today (UTC), the limit max_jobs_per_day is 2" in answer.message
    assert answer.retry_seconds is not None
    assert 0.0 < answer.retry_seconds <= 86400.0
    # The same request again is no new job.
    assert stub.Fit(asked_for, metadata=mine, timeout=PATIENCE).job.name == first.name
    stub.DeleteJob(job_pb2.DeleteJobRequest(name=first.name), metadata=mine, timeout=PATIENCE)
    assert refusal(stub.Fit, few.fit_request(X, LABELS), metadata=mine).reason == "JOBS_PER_DAY"
    ca, certificate, key = (trust.folder / name for name in ("servers.pem", "client.pem", "client.key"))
    with (
        Client(guarded.target, token=mine[0][1][7:], project="few", ca=ca, certificate=certificate, key=key) as client,
        pytest.raises(LimitExceeded, match="max_jobs_per_day"),
    ):
        client.fit(X, [0, 1] + 58 * [-1])


def test_a_project_has_so_many_bytes(guarded: Service) -> None:
    token = guarded.token("small")
    small = Project(guarded.project(token).stub, "small")
    kept = small.upload(X, dataset_id="kept")
    assert kept.size_bytes == X.nbytes == 1440
    small.upload(X, dataset_id="second")
    with pytest.raises(grpc.RpcError) as caught:
        small.upload(X, dataset_id="third")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "2880 bytes stored and would get 1440 more, the limit max_project_bytes is 3000" in caught.value.details()
    # Small data inside a request is stored too.
    inside = refusal(small.stub.Fit, small.fit_request(X + 1.0, LABELS))
    assert (inside.code, inside.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "PROJECT_FULL")
    small.upload(X[:5], dataset_id="the-rest")
    full = refusal(small.stub.Fit, small.fit_request(kept.name, LABELS))
    assert (full.code, full.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "PROJECT_FULL")
    small.stub.DeleteDataset(dataset_pb2.DeleteDatasetRequest(name=f"{small.name}/datasets/second"), timeout=PATIENCE)
    small.stub.Fit(small.fit_request(kept.name, LABELS), timeout=PATIENCE)
    # Others have limits of their own.
    other = guarded.project(guarded.token("*"))
    for number in range(3):
        other.upload(X, dataset_id=f"d{number}")
