"""What every manifest must keep to, whichever overlay it is rendered from."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from homophily_service.contract.states import FAILED, QUEUED, RUNNING
from homophily_service.predictor.process import BASE_BYTES, LOADED
from homophily_service.runtime.settings import Settings, load_settings
from homophily_service.storage.queue import Queue
from homophily_service.storage.records import NewJob

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# What a process needs to close everything once its grace time is over: an attempt at a silent database, and then some.
MARGIN = 20.0
GIB = 1 << 30

_spec = importlib.util.spec_from_file_location("check_manifests", KUBERNETES / "check.py")
assert _spec is not None
assert _spec.loader is not None
check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check)

Resource = dict[str, Any]
# Overlays that use the settings, secrets and network policies of another one.
BESIDE = {"kserve": "cpu"}
RENDERED: dict[str, list[Resource]] = {overlay: check.committed(overlay) for overlay in check.OVERLAYS}


class Rendered(NamedTuple):
    """A resource, and the overlay that it comes from."""

    resource: Resource
    overlay: str


def each(*kinds: str) -> list[Any]:
    return [
        pytest.param(Rendered(resource, overlay), id=f"{overlay}-{resource['kind']}-{resource['metadata']['name']}")
        for overlay, resources in RENDERED.items()
        for resource in resources
        if resource["kind"] in kinds
    ]


def one(overlay: str, kind: str, name: str) -> Resource:
    (found,) = (r for r in RENDERED[overlay] if r["kind"] == kind and r["metadata"]["name"] == name)
    return found


def pod_of(workload: Resource) -> Resource:
    """What its pods are made of; KServe's runtimes are such a description themselves."""
    pod: Resource = workload["spec"] if workload["kind"] == "ServingRuntime" else workload["spec"]["template"]["spec"]
    return pod


def containers(workload: Resource) -> list[Resource]:
    pod = pod_of(workload)
    return [*pod.get("initContainers", ()), *pod["containers"]]


def environment(workload: Resource, overlay: str) -> dict[str, str | None]:
    """Variables of the first container; None for those out of secrets."""
    overlay = BESIDE.get(overlay, overlay)
    (container, *_) = containers(workload)
    found: dict[str, str | None] = {}
    for source in container.get("envFrom", ()):
        found |= one(overlay, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", ()):
        found[variable["name"]] = variable.get("value")
    return found


def settings_of(workload: Resource, overlay: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment(workload, overlay).items():
        monkeypatch.setenv(name, value if value is not None else "sqlite:///secret")
    return load_settings()


pods = pytest.mark.parametrize("rendered", each("Deployment", "Job", "ServingRuntime"))
workloads = pytest.mark.parametrize("rendered", each("Deployment", "Job"))
servers = pytest.mark.parametrize("rendered", each("Deployment"))
bounded = pytest.mark.parametrize("rendered", each("Deployment", "ServingRuntime"))
production = pytest.mark.parametrize("overlay", ["cpu", "gpu"])


def test_every_overlay_is_there() -> None:
    for overlay in ("dev", "cpu", "gpu"):
        assert {r["kind"] for r in RENDERED[overlay]} >= {"Deployment", "Service", "NetworkPolicy", "ServiceAccount"}
    production = {"Job", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject", "ServiceMonitor"}
    for overlay in ("cpu", "gpu"):
        assert {r["kind"] for r in RENDERED[overlay]} >= production


@workloads
def test_no_container_runs_as_root(rendered: Rendered) -> None:
    workload = rendered.resource
    context = workload["spec"]["template"]["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 10001
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"USER {context['runAsUser']}:" in (ROOT / "deploy/docker/Dockerfile").read_text()
    for container in containers(workload):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not {"runAsUser", "runAsNonRoot", "privileged"} & own.keys()


@pods
def test_only_volumes_are_written_to(rendered: Rendered) -> None:
    workload = rendered.resource
    volumes = {volume["name"]: volume for volume in pod_of(workload)["volumes"]}
    for container in containers(workload):
        mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert "/tmp" in mounted
        if workload["kind"] != "Job":
            assert "/data" in mounted
    for volume in volumes.values():
        assert "hostPath" not in volume
        if "emptyDir" in volume:
            assert "sizeLimit" in volume["emptyDir"]


@pods
def test_every_container_has_requests_and_limits(rendered: Rendered) -> None:
    workload = rendered.resource
    for container in containers(workload):
        for part in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][part].keys()


# A job's container has no probes: its end is what counts. Nor has the tracker's: it answers nothing.
@pytest.mark.parametrize("rendered", [one for one in each("Deployment") if "tracker" not in str(one.id)])
def test_every_container_that_answers_has_probes(rendered: Rendered) -> None:
    workload, overlay = rendered
    ports = environment(workload, overlay)
    for container in containers(workload):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            way = container[probe]
            if "grpc" in way:
                assert str(way["grpc"]["port"]) == ports["HOMOPHILY_PORT"]
            else:
                assert way["exec"]["command"][:2] == ["homophily", "health"]
                assert way["exec"]["command"][-1].endswith(f":{ports['HOMOPHILY_METRICS_PORT']}")
    if workload["metadata"]["name"] == "homophily-api":
        assert containers(workload)[0]["readinessProbe"]["grpc"]["service"] == "homophily.v1.HomophilyService"


@servers
def test_draining_is_shorter_than_the_grace_time(rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, overlay = rendered
    drain = settings_of(workload, overlay, monkeypatch).shutdown_grace
    for container in containers(workload):
        command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        before = float(command[-1])
        assert drain + before + MARGIN <= workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


@production
def test_no_job_takes_longer_than_a_worker_has_to_finish_it(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers were scaled in after ten minutes, and gave longer jobs back to be begun again, without end."""
    worker = one(overlay, "Deployment", "homophily-worker")
    settings = settings_of(worker, overlay, monkeypatch)
    assert settings.job_time_limit <= settings.max_job_time_limit <= settings.shutdown_grace
    annotations = worker["spec"]["template"]["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    api = settings_of(one(overlay, "Deployment", "homophily-api"), overlay, monkeypatch)
    assert api.max_job_time_limit == settings.max_job_time_limit


@bounded
def test_limits_of_the_service_are_hit_before_those_of_the_container(
    rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, overlay = rendered
    settings = settings_of(workload, overlay, monkeypatch)
    (container,) = containers(workload)
    # What the container's first process takes: the API with its messages, or a supervisor.
    needed = {"serve": GIB, "worker": GIB / 2, "tracker": 0}[container["args"][0]]
    if container["args"] == ["serve"]:
        needed += settings.predictors * (LOADED * settings.predictor_cache_bytes + BASE_BYTES)
        needed += settings.workers * (settings.job_memory_bytes or 0)
    if container["args"] == ["worker"]:
        assert settings.job_memory_bytes is not None
        needed += settings.job_memory_bytes
    if container["args"] == ["tracker"] or (container["args"] == ["serve"] and settings.tracker):
        needed += settings.tracking_memory_bytes
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert needed <= GIB * int(limit.removesuffix("Gi"))


@production
def test_apis_refuse_what_no_worker_can_hold(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api, worker = (one(overlay, "Deployment", f"homophily-{name}") for name in ("api", "worker"))
    sizes = [settings_of(workload, overlay, monkeypatch).job_memory_bytes for workload in (api, worker)]
    assert sizes[0] == sizes[1] is not None


@production
def test_runs_are_sent_by_one_process_in_a_container_of_its_own(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settings_of(one(overlay, "Deployment", "homophily-api"), overlay, monkeypatch).tracker
    tracker = one(overlay, "Deployment", "homophily-tracker")
    assert tracker["spec"]["replicas"] == 1
    assert settings_of(tracker, overlay, monkeypatch).tracking


@production
def test_only_the_migration_can_change_tables(overlay: str) -> None:
    secrets = {
        workload["metadata"]["name"]: variable["valueFrom"]["secretKeyRef"]["name"]
        for workload in RENDERED[overlay]
        if workload["kind"] in ("Deployment", "Job")
        for variable in containers(workload)[0]["env"]
        if variable["name"] == "HOMOPHILY_DATABASE_URL"
    }
    migrate = f"homophily-migrate-{VERSION.replace('.', '-')}"
    assert secrets.pop(migrate) == "homophily-database-owner"
    assert secrets == {f"homophily-{name}": "homophily-database" for name in ("api", "worker", "tracker")}


def test_kserve_runs_an_api_without_workers_under_the_same_restrictions(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = one("kserve", "ServingRuntime", "homophily")
    model = one("kserve", "InferenceService", "homophily-models")["spec"]["predictor"]["model"]
    (container,) = containers(runtime)
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"] in runtime["spec"]["supportedModelFormats"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    (api,) = containers(one("cpu", "Deployment", "homophily-api"))
    restrictions = pod_of(one("cpu", "Deployment", "homophily-api"))["securityContext"] | api["securityContext"]
    assert {name: restrictions[name] for name in container["securityContext"]} == container["securityContext"]
    settings = settings_of(runtime, "kserve", monkeypatch)
    assert settings.workers == 0
    assert not settings.tracker
    assert settings.auth == "tokens"
    assert container["ports"][0]["containerPort"] == settings.port


@workloads
def test_settings_exist_and_are_valid(rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, overlay = rendered
    names = {name for name in environment(workload, overlay) if name.startswith("HOMOPHILY_")}
    assert names <= {f"HOMOPHILY_{name.upper()}" for name in Settings.model_fields}
    settings = settings_of(workload, overlay, monkeypatch)
    if workload["kind"] == "Deployment":
        assert settings.auth == "tokens" or settings.host == "127.0.0.1"
        limit = containers(workload)[0]["resources"]["limits"]["cpu"]
        # Cores are counted on the node, so threads must be said, and no more than there are.
        assert settings.threads is not None
        assert settings.threads <= int(limit)


@workloads
def test_pods_know_nothing_that_they_need_not(rendered: Rendered) -> None:
    workload, overlay = rendered
    pod = workload["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    account = one(overlay, "ServiceAccount", pod["serviceAccountName"])
    assert account["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_service_links_would_be_taken_for_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why they are off."""
    monkeypatch.setenv("HOMOPHILY_PORT", "tcp://10.0.0.1:50051")
    with pytest.raises(ValueError, match="port"):
        load_settings()


@workloads
def test_images_are_of_this_version(rendered: Rendered) -> None:
    workload = rendered.resource
    for container in containers(workload):
        assert container["image"].rpartition(":")[2] in (VERSION, f"{VERSION}-cuda")
    if workload["kind"] == "Job":
        assert workload["metadata"]["name"].endswith(VERSION.replace(".", "-"))


def test_gpu_workers_have_a_gpu_each_and_others_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for overlay, gpus in (("cpu", None), ("gpu", 1)):
        (worker,) = containers(one(overlay, "Deployment", "homophily-worker"))
        for part in ("requests", "limits"):
            assert worker["resources"][part].get("nvidia.com/gpu") == gpus
        assert worker["image"].endswith("-cuda") == (gpus is not None)
        # Computing on the device must be said: the image alone does not.
        settings = settings_of(one(overlay, "Deployment", "homophily-worker"), overlay, monkeypatch)
        assert settings.device == ("cpu" if gpus is None else "cuda:0")


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_a_worker_that_cannot_compute_is_not_ready_but_is_not_killed_for_it(overlay: str) -> None:
    (worker,) = containers(one(overlay, "Deployment", "homophily-worker"))
    for probe, lenient in (("startupProbe", False), ("livenessProbe", True), ("readinessProbe", False)):
        assert ("--alive" in worker[probe]["exec"]["command"]) == lenient


def test_dev_is_one_pod_on_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    api = one("dev", "Deployment", "homophily-api")
    settings = settings_of(api, "dev", monkeypatch)
    assert api["spec"]["replicas"] == 1
    assert api["spec"]["strategy"] == {"type": "Recreate"}
    assert settings.database_url is None
    assert settings.workers == 1
    assert not any(r["kind"] == "Secret" for r in RENDERED["dev"])


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_who_scales_alone_says_how_many(overlay: str) -> None:
    targets = [
        one(overlay, kind, name)["spec"]["scaleTargetRef"]["name"]
        for kind, name in (("HorizontalPodAutoscaler", "homophily-api"), ("ScaledObject", "homophily-worker"))
    ]
    assert targets == ["homophily-api", "homophily-worker"]
    for target in targets:
        assert "replicas" not in one(overlay, "Deployment", target)["spec"]


@pytest.mark.parametrize("rendered", each("PodDisruptionBudget", "Service", "ServiceMonitor", "PodMonitor"))
def test_selectors_find_something(rendered: Rendered) -> None:
    resource, overlay = rendered
    selector = resource["spec"]["selector"]
    labels = selector.get("matchLabels", selector)
    kind = "Service" if resource["kind"] == "ServiceMonitor" else "Deployment"
    candidates = [
        r["metadata"]["labels"] if kind == "Service" else r["spec"]["template"]["metadata"]["labels"]
        for r in RENDERED[overlay]
        if r["kind"] == kind
    ]
    assert any(labels.items() <= candidate.items() for candidate in candidates)


def test_everything_is_refused_by_default() -> None:
    for overlay, resources in RENDERED.items():
        policies = [r["spec"] for r in resources if r["kind"] == "NetworkPolicy"]
        nothing = [p for p in policies if not p.get("ingress") and not p.get("egress")]
        if overlay not in BESIDE:
            assert any(set(p["policyTypes"]) == {"Ingress", "Egress"} for p in nothing), overlay
        # Nobody gets in from everywhere.
        for policy in policies:
            assert all(rule.get("from") for rule in policy.get("ingress", ()))


def test_no_secret_is_written_down() -> None:
    for path in [*KUBERNETES.rglob("*.yaml"), *(ROOT / "deploy" / "docker").iterdir()]:
        text = path.read_text()
        assert not re.search(r"^kind: Secret$", text, re.MULTILINE), path
        assert not re.search(r"://[^/\s:]+:[^@\s]+@", text), path
    for resources in RENDERED.values():
        for resource in resources:
            if resource["kind"] not in ("Deployment", "Job"):
                continue
            for container in containers(resource):
                for variable in container.get("env", ()):
                    secret = re.search(r"KEY|SECRET|PASSWORD|TOKEN|DATABASE_URL", variable["name"])
                    assert not secret or "secretKeyRef" in variable["valueFrom"], variable


def test_keda_counts_the_jobs_that_want_a_worker(tmp_path: Path) -> None:
    from sqlalchemy import text

    from homophily_client.names import JobName
    from homophily_service.storage.database import Database

    (trigger,) = one("cpu", "ScaledObject", "homophily-worker")["spec"]["triggers"]
    database = Database(f"sqlite:///{tmp_path / 'queue.db'}")
    database.migrate()
    queue = Queue(database)
    for number in range(5):
        queue.submit(NewJob(JobName("default", f"job-{number}"), "fit", b""), 100)
    lease = queue.claim("worker", ["fit"], 15.0, b"")
    assert lease is not None
    other = queue.claim("other", ["fit"], 15.0, b"")
    assert other is not None
    queue.fail(other, b"", "for this test")
    assert {state: count for state, _, count in queue.depths()} == {QUEUED: 3, RUNNING: 1, FAILED: 1}
    with database.read() as connection:
        assert connection.execute(text(trigger["metadata"]["query"])).scalar() == 4
    database.close()


def test_committed_manifests_are_what_kubectl_renders() -> None:
    for overlay, resources in RENDERED.items():
        fresh = check.rendered(overlay)
        if fresh is None:
            pytest.skip("there is no kubectl here")
        assert check.ordered(fresh) == resources


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "homophily-api"), ("ScaledObject", "homophily-worker")])
def test_the_check_of_schemas_finds_mistakes(kind: str, name: str) -> None:
    resource = one("cpu", kind, name)
    assert check.problems(resource) == []
    misspelt, mistyped = deepcopy(resource), deepcopy(resource)
    misspelt["spec"]["minReadySecond"] = 3
    assert check.problems(misspelt)
    if kind == "Deployment":
        mistyped["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "60"
    else:
        mistyped["spec"]["triggers"][0]["metadata"]["targetQueryValue"] = 1
    assert check.problems(mistyped)
