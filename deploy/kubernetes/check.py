"""Render the overlays and check them against the schemas of Kubernetes, KEDA, Prometheus and KServe, in `make lint`.

`--write` renders them into rendered/, for `kubectl apply -f` without kustomize, and to be checked without kubectl. With
kubectl, rendered/ must be equal to its output.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

HERE = Path(__file__).resolve().parent
OVERLAYS = ("dev", "cpu", "gpu", "kserve")
# The oldest version whose gRPC probes and autoscaling/v2 are stable, and a recent one.
VERSIONS = ("1.27", "1.34")
HEADER = "# Rendered by deploy/kubernetes/check.py --write from overlays/{}: change it there.\n"

Resource = dict[str, Any]


def committed(overlay: str) -> list[Resource]:
    """The resources in rendered/."""
    path = HERE / "rendered" / f"{overlay}.yaml"
    return list(yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)) if path.exists() else []


def rendered(overlay: str) -> list[Resource] | None:
    """The resources that kubectl makes of an overlay; None without kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    command = [kubectl, "kustomize", str(HERE / "overlays" / overlay)]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return list(yaml.safe_load_all(done.stdout))


def ordered(resources: list[Resource]) -> list[Resource]:
    """The resources in an order that does not depend on kustomize's version, dependencies first."""
    first = ("Namespace", "ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Job", "Service")

    def place(one: Resource) -> tuple[int, str, str]:
        kind = str(one["kind"])
        return first.index(kind) if kind in first else len(first), kind, str(one["metadata"]["name"])

    return sorted(resources, key=place)


def problems(resource: Resource) -> list[str]:
    """What is wrong with a resource, by its schema."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    schema = HERE / "schemas" / f"{resource['kind']}.json"
    if schema.exists():
        validator = Draft202012Validator(json.loads(schema.read_text()))
        found = [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(resource)]
        return found if found or resource["kind"] != "ServingRuntime" else problems(pod_of(resource))
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            found.append(f"{name}: Kubernetes {version}: {getattr(error, 'message', None) or error}")
    return found


def pod_of(runtime: Resource) -> Resource:
    """The pod that KServe makes of a runtime, which Kubernetes has a schema for."""
    spec = {name: runtime["spec"][name] for name in ("containers", "volumes")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": runtime["metadata"]["name"]}, "spec": spec}


def main() -> int:
    """The count of overlays with problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="render into rendered/")
    write = parser.parse_args().write
    failed = 0
    for overlay in OVERLAYS:
        fresh = rendered(overlay)
        if write:
            if fresh is None:
                raise SystemExit("kubectl is not found: apt-get install kubernetes-client")
            text = yaml.safe_dump_all(ordered(fresh), sort_keys=False, width=120)
            (HERE / "rendered" / f"{overlay}.yaml").write_text(HEADER.format(overlay) + text)
        resources = committed(overlay)
        found = [problem for resource in resources for problem in problems(resource)]
        if not resources:
            found.append(f"rendered/{overlay}.yaml is missing")
        if fresh is not None and ordered(fresh) != resources:
            found.append(f"rendered/{overlay}.yaml is not what kubectl renders: run deploy/kubernetes/check.py --write")
        for problem in found:
            print(f"{overlay}: {problem}", file=sys.stderr)
        failed += bool(found)
        how = "as kubectl renders them" if fresh is not None else "as committed: there is no kubectl to render them"
        print(f"{overlay}: {len(resources)} resources, {how}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
