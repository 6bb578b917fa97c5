"""Make the chart's templates of the rendered overlays of kustomize, and check them, in `make lint`.

The chart with its own values renders what kustomize renders; only what values.yaml names is variable. `--write` makes
the templates. With helm, its rendering is compared too; without, :mod:`template` renders, which knows no more of
Helm's language than the chart uses.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kubernetes")]
import check as manifests  # noqa: E402
import template  # noqa: E402

__all__ = ["CHART", "NAMESPACES", "OVERLAYS", "defaults", "expected", "main", "refusals", "rendered", "templates"]

CHART = HERE / "homophily"
#: The namespaces of kustomize's overlays; a chart is installed in any.
NAMESPACES = {"dev": "homophily-dev", "cpu": "homophily", "gpu": "homophily"}
OVERLAYS = tuple(NAMESPACES)
HEADER = "{{- /* Made by deploy/helm/chart.py --write from deploy/kubernetes: change it there. */ -}}\n"
SECRETS = {"homophily-database-owner": "databaseOwner", "homophily-database": "database", "homophily-s3": "s3"}
CONTAINERS = ("api", "worker", "tracker", "migrate")
#: Which bounds of values.yaml a scaler has, by its kind.
SCALERS = {
    "ScaledObject": ("workers", "minReplicaCount", "maxReplicaCount"),
    "HorizontalPodAutoscaler": ("apis", "minReplicas", "maxReplicas"),
}

Resource = dict[str, Any]


def defaults() -> dict[str, Any]:
    """The chart's own values."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def expected(overlay: str) -> list[Resource]:
    """What kustomize renders, without the namespace, which Helm creates itself."""
    return [one for one in manifests.committed(overlay) if one["kind"] != "Namespace"]


def templates() -> dict[str, str]:
    """The text of each template, by its file's name."""
    version = str(defaults()["image"]["tag"])
    found = {}
    for overlay in OVERLAYS:
        documents = "---\n".join(_document(one, NAMESPACES[overlay], version) for one in expected(overlay))
        found[f"{overlay}.yaml"] = f'{HEADER}{{{{- if eq .Values.overlay "{overlay}" }}}}\n{documents}{{{{- end }}}}\n'
    return found


def _document(resource: Resource, namespace: str, version: str) -> str:
    """A resource as a template."""
    actions: list[str] = []

    def action(text: str) -> str:
        actions.append(text)
        return f"ACTION-{len(actions) - 1}-"

    def changed(value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            where = value.get("name") if path and path[-2:-1] == ("containers",) else None
            return {
                key: action(_resources(str(where), one))
                if key == "resources" and where in CONTAINERS
                else changed(one, (*path, key))
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [changed(one, (*path, place)) for place, one in enumerate(value)]
        return _value(value, path, action)

    def _value(value: Any, path: tuple[Any, ...], action: Any) -> Any:
        kind = resource["kind"]
        if path[-1] == "namespace" and value == namespace:
            return action("{{ .Release.Namespace | quote }}")
        if path[-1] == "image":
            suffix = str(value).rpartition(":")[2].removeprefix(version)
            return action(f'"{{{{ .Values.image.repository }}}}:{{{{ .Values.image.tag }}}}{suffix}"')
        if path[-1] == "name" and {"secretKeyRef", "secretTargetRef"} & set(path):
            return action(f"{{{{ .Values.secrets.{SECRETS[value]} | quote }}}}")
        if kind in SCALERS and path[-1] in SCALERS[kind][1:]:
            bound = "min" if path[-1] == SCALERS[kind][1] else "max"
            return action(f'{{{{ dig "{bound}" {value} .Values.scaling.{SCALERS[kind][0]} }}}}')
        if path == ("metadata", "name") and version.replace(".", "-") in str(value):
            base = str(value).removesuffix(version.replace(".", "-"))
            return action(f'{base}{{{{ .Values.image.tag | replace "." "-" }}}}')
        return value

    body = dict(resource)
    if resource["kind"] == "ConfigMap":
        data = _json(body.pop("data"))
        rows = f"{{{{- range $name, $value := merge .Values.settings (fromJson `{data}`) }}}}"
        tail = f"data:\n{rows}\n  {{{{ $name }}}}: {{{{ $value | quote }}}}\n{{{{- end }}}}\n"
    else:
        tail = ""
    text = yaml.safe_dump(changed(body, ()), sort_keys=False, width=10_000, allow_unicode=True)
    for place, one in enumerate(actions):
        text = text.replace(f"ACTION-{place}-", one)
    return text + tail


def _resources(container: str, resources: Any) -> str:
    return f'{{{{ dig "{container}" (fromJson `{_json(resources)}`) .Values.resources | toJson }}}}'


def _json(value: Any) -> str:
    """A constant inside an action, which must not look like the action's end."""
    return re.sub(r"}(?=})", "} ", json.dumps(value, sort_keys=True))


def refusals(values: dict[str, Any]) -> list[str]:
    """What is wrong with values, by the chart's schema, which Helm checks as well."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(schema).iter_errors(values)]


def rendered(values: dict[str, Any], namespace: str) -> list[Resource]:
    """The resources that the chart renders."""
    found = []
    for path in sorted((CHART / "templates").glob("*.yaml")):
        text = template.render(path.read_text(), values, namespace)
        found += [one for one in yaml.safe_load_all(text) if one is not None]
    return found


def _by_helm(helm: str, overlay: str) -> list[Resource]:
    """The same by Helm itself."""
    command = [helm, "template", "homophily", str(CHART), "--set", f"overlay={overlay}", "-n", NAMESPACES[overlay]]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return [one for one in yaml.safe_load_all(done.stdout) if one is not None]


def main() -> int:
    """The count of problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the templates")
    if parser.parse_args().write:
        for name, text in templates().items():
            (CHART / "templates" / name).write_text(text)
    problems = [
        f"templates/{name} differs from its sources: run deploy/helm/chart.py --write"
        for name, text in templates().items()
        if not (path := CHART / "templates" / name).exists() or path.read_text() != text
    ]
    problems += [f"values.yaml: {refusal}" for refusal in refusals(defaults())]
    helm = shutil.which("helm")
    for overlay in OVERLAYS:
        values = {**defaults(), "overlay": overlay}
        found = rendered(values, NAMESPACES[overlay])
        problems += [f"{overlay}: {problem}" for one in found for problem in manifests.problems(one)]
        wanted = manifests.ordered(expected(overlay))
        if manifests.ordered(found) != wanted:
            problems.append(f"{overlay}: the chart renders something else than kustomize")
        if helm is not None and manifests.ordered(_by_helm(helm, overlay)) != wanted:
            problems.append(f"{overlay}: helm renders something else than kustomize")
        how = "by helm too" if helm is not None else "without helm, by its own renderer"
        print(f"chart, {overlay}: {len(found)} resources, rendered {how}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return len(problems)


if __name__ == "__main__":
    sys.exit(main())
