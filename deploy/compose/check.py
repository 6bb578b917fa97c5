"""Check compose.yaml against the Compose Specification, in `make lint`; docker is not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from compose_pydantic import ComposeSpecification
from pydantic import ValidationError

FILE = Path(__file__).resolve().parent / "compose.yaml"


def project() -> dict[str, Any]:
    """The file's content, without the anchors that only it refers to."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    # The models know every key of the specification, but none that begin with x-, which mean nothing.
    return {key: value for key, value in found.items() if not key.startswith("x-")}


def problems(content: dict[str, Any]) -> list[str]:
    """What the specification does not allow, or what is referred to and is not there."""
    try:
        ComposeSpecification.model_validate(content)
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    services = content["services"]
    found = []
    for name, service in services.items():
        found += [
            f"{name} waits for {other}, which is not there" for other in service.get("depends_on", {}).keys() - services
        ]
        for other, condition in service.get("depends_on", {}).items():
            is_healthy = condition["condition"] == "service_healthy"
            if is_healthy and "test" not in services.get(other, {}).get("healthcheck", {}):
                found.append(f"{name} waits for the health of {other}, which does not say it")
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        found += [
            f"{name} has the volume {volume}, which is not there" for volume in volumes - content["volumes"].keys()
        ]
    return found


def main() -> int:
    """The count of problems."""
    found = problems(project())
    for problem in found:
        print(f"compose.yaml: {problem}", file=sys.stderr)
    if not found:
        print(f"compose.yaml: {len(project()['services'])} services")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
