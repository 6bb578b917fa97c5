"""The Helm chart installs what kustomize does, and its values change what they say."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from typing import Any

import pytest
import yaml

from .modules import DEPLOY, load

chart = load("helm/chart.py")
VERSION = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]


def with_values(overlay: str, **changes: Any) -> dict[str, Any]:
    return {**chart.defaults(), "overlay": overlay, **changes}


def resources(overlay: str, namespace: str = "team", **changes: Any) -> dict[tuple[str, str], Any]:
    values = with_values(overlay, **changes)
    assert chart.refusals(values) == []
    return {(one["kind"], one["metadata"]["name"]): one for one in chart.rendered(values, namespace)}


def containers(found: dict[tuple[str, str], Any]) -> dict[str, Any]:
    workloads = [one for (kind, _), one in found.items() if kind in ("Deployment", "Job")]
    return {
        container["name"]: container for one in workloads for container in one["spec"]["template"]["spec"]["containers"]
    }


@pytest.mark.parametrize("overlay", chart.OVERLAYS)
def test_the_chart_renders_what_kustomize_renders(overlay: str) -> None:
    found = chart.rendered(with_values(overlay), chart.NAMESPACES[overlay])
    assert chart.manifests.ordered(found) == chart.manifests.ordered(chart.expected(overlay))
    assert len(found) > 5
    for one in found:
        assert chart.manifests.problems(one) == []


def test_templates_are_those_that_the_manifests_give() -> None:
    for name, text in chart.templates().items():
        assert (chart.CHART / "templates" / name).read_text() == text, "run deploy/helm/chart.py --write"


def test_the_chart_has_this_version() -> None:
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert {described["version"], described["appVersion"], chart.defaults()["image"]["tag"]} == {VERSION}


@pytest.mark.parametrize("overlay", chart.OVERLAYS)
def test_it_is_installed_in_the_release_s_namespace(overlay: str) -> None:
    assert {one["metadata"]["namespace"] for one in resources(overlay).values()} == {"team"}


def test_the_image_is_a_value() -> None:
    image = {"repository": "registry:5000/team/homophily", "tag": "1.2.3"}
    found = resources("gpu", image=image)
    images = {name: container["image"] for name, container in containers(found).items()}
    assert images.pop("worker") == "registry:5000/team/homophily:1.2.3-cuda"
    assert set(images.values()) == {"registry:5000/team/homophily:1.2.3"}
    # A job cannot be changed, so another image is another job.
    assert ("Job", "homophily-migrate-1-2-3") in found


def test_settings_are_added_or_take_the_place_of_others() -> None:
    settings = {
        "HOMOPHILY_BLOBS_URL": "s3://mine/here",
        "AWS_ENDPOINT_URL": 'https://"quoted"',
        "HOMOPHILY_AUDIT": "all",
    }
    usual = resources("cpu")["ConfigMap", "homophily-settings"]["data"]
    assert resources("cpu", settings=settings)["ConfigMap", "homophily-settings"]["data"] == usual | settings


def test_secrets_scaling_and_resources_are_values() -> None:
    own = {"requests": {"cpu": "8"}, "limits": {"cpu": "8", "memory": "32Gi"}}
    found = resources(
        "cpu",
        secrets={"databaseOwner": "own", "database": "data", "s3": "bucket"},
        scaling={"workers": {"min": 0, "max": 50}, "apis": {"max": 3}},
        resources={"worker": own},
    )
    scaler = found["ScaledObject", "homophily-worker"]["spec"]
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"]) == (0, 50)
    usual = resources("cpu")["HorizontalPodAutoscaler", "homophily-api"]["spec"]
    assert found["HorizontalPodAutoscaler", "homophily-api"]["spec"] == usual | {"maxReplicas": 3}
    assert containers(found)["worker"]["resources"] == own
    assert containers(found)["api"]["resources"] == containers(resources("cpu"))["api"]["resources"]
    text = yaml.safe_dump(list(found.values()))
    for former in ("name: homophily-s3", "name: homophily-database-owner"):
        assert former not in text
    # KEDA's resource of that name stays.
    assert found["TriggerAuthentication", "homophily-database"]["spec"]["secretTargetRef"][0]["name"] == "data"


@pytest.mark.parametrize(
    "changes",
    [
        {"overlay": "other"},
        {"image": {"repository": "homophily"}},
        {"image": {"repository": "homo phily", "tag": "1"}},
        {"settings": {"HOMOPHILY_PORT": 50051}},
        {"settings": {"port": "1"}},
        {"scaling": {"workers": {"most": 3}, "apis": {}}},
        {"resources": {"other": {"requests": {}, "limits": {}}}},
        {"unknown": 1},
    ],
)
def test_wrong_values_are_refused(changes: dict[str, Any]) -> None:
    assert chart.refusals({**chart.defaults(), **changes})


def test_what_is_outside_of_the_language_is_an_error() -> None:
    values = deepcopy(chart.defaults())
    for text in (
        "{{ .Values.missing }}",
        "{{ toYaml .Values.image }}",
        "{{ if eq 1 1 }}",
        "{{ end }}",
        "{{ with .Values }}{{ end }}",
        "{{ range .Values.image }}{{ end }}",
        "{{ quote (eq 1 1 }}",
        "{{ 1 2 }}",
    ):
        with pytest.raises(ValueError, match=r".+"):
            chart.template.render(text, values, "team")


def test_the_language_is_helms() -> None:
    values = {"a": {"b": 'x"y', "n": 0}, "map": {"two": "2", "one": "1"}}

    def rendered(text: str) -> str:
        return str(chart.template.render(text, values, "team"))

    assert rendered("a: {{ .Values.a.b | quote }} {{ .Release.Namespace }}") == 'a: "x\\"y" team'
    assert rendered("x\n{{- /* no */ -}}\n  y") == "xy"
    assert rendered('{{- if eq .Values.a.b "z" }}no{{- end }} yes') == " yes"
    assert (
        rendered("m:\n{{- range $k, $v := .Values.map }}\n  {{ $k }}: {{ $v }}\n{{- end }}\n")
        == "m:\n  one: 1\n  two: 2\n"
    )
    assert rendered('{{ dig "n" 5 .Values.a }}{{ dig "m" 5 .Values.a }}') == "05"
    assert rendered('{{ merge .Values.map (fromJson `{"one": "no", "three": "3"}`) | toJson }}') == (
        '{"one":"1","three":"3","two":"2"}'
    )
    assert rendered('{{ "1.2.3" | replace "." "-" }}') == "1-2-3"
