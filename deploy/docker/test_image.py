"""Build the image on a base made here, and fit a model in it: `make image-test`.

Needs root, Debian's packages buildah and debootstrap, and a network for the packages that go into the image; it needs
no Docker daemon and no registry. buildah isolates by chroot and copies whole layers (vfs), which works within
containers too. Then the image runs as its user with a read-only root file system, an empty data volume and a tmpfs:

1. `homophily serve` starts, and `homophily health` says that it serves;
2. an upload, a fit and a prediction succeed, and nothing is compiled for it;
3. `homophily migrate` and a worker with its probe work too;
4. nothing outside of the volume and the tmpfs can be written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
USER = "10001"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE, IMAGE = "localhost/homophily-base", "localhost/homophily"
TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "unshare": "util-linux", "ip": "iproute2"}
# Runs in namespaces of its own: nothing stays mounted whatever happens, ports are free, and there is no network.
ISOLATED = """
set -eu
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
ip link set lo up
mount --bind "$DATA" "$ROOT/data"
mount -t tmpfs -o size=512m,mode=1777 tmpfs "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
exec chroot --userspec="$IMAGE_USER" "$ROOT" /usr/bin/env --ignore-environment "$@"
"""
# What a user would do, within the image, which has a shell, but no curl and the like.
SCENARIO = """
set -eu
cd /tmp
if touch /opt/homophily/written 2>/dev/null; then echo 'the root file system can be written'; exit 1; fi
test "$(id -u)" = 10001
homophily-entrypoint migrate
homophily-entrypoint serve --workers 0 --port 50051 >/tmp/serve.log 2>&1 &
api=$!
homophily-entrypoint worker --metrics-port 9464 >/tmp/worker.log 2>&1 &
worker=$!
homophily health --timeout 60 || { cat /tmp/serve.log; exit 1; }
python3 - <<'PYTHON'
import numpy as np
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
np.save("/tmp/digits.npy", X)
with open("/tmp/labels.csv", "w") as file:
    file.write("point,label\\n" + "".join(f"{point},{y[point]}\\n" for point in range(100)))
PYTHON
until homophily health --worker 127.0.0.1:9464; do sleep 1; kill -0 $worker; done
homophily upload /tmp/digits.npy --name digits
began=$(date +%s%N)
homophily fit digits --labels /tmp/labels.csv --model first --json > /tmp/fit.json \\
    || { cat /tmp/fit.json /tmp/worker.log; exit 1; }
echo "FIT_MS=$(( ($(date +%s%N) - began) / 1000000 ))"
homophily predict first /tmp/digits.npy --output /tmp/answers.csv
test "$(wc -l < /tmp/answers.csv)" = 1798
(cd /opt/homophily/kernels && find . -name '*.nbc' | sort) > /tmp/kernels.before
(cd "$NUMBA_CACHE_DIR" && find . -name '*.nbc' | sort) > /tmp/kernels.after
echo "KERNELS=$(wc -l < /tmp/kernels.before) COMPILED=$(comm -13 /tmp/kernels.before /tmp/kernels.after | wc -l)"
comm -13 /tmp/kernels.before /tmp/kernels.after >&2
kill -TERM $worker $api
wait $worker
wait $api
echo STOPPED
"""


class Missing(Exception):
    """Something that this test needs is missing."""


def check_tools() -> None:
    """Raise Missing, which names every missing tool and its package."""
    missing = [f"{tool} (apt-get install {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise Missing(f"not found: {', '.join(missing)}")
    if os.geteuid() != 0:
        raise Missing("must be run as root: debootstrap and chroot isolation need it")


def say(text: str) -> None:
    """Print progress, with the time since the start."""
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def buildah(storage: Path, *arguments: str, capture: bool = False) -> str:
    """Run buildah on a storage of our own."""
    command = ["buildah", "--storage-driver", "vfs", "--root", str(storage / "root"), "--runroot", str(storage / "run")]
    done = subprocess.run([*command, *arguments], check=True, text=True, stdout=subprocess.PIPE if capture else None)
    return (done.stdout or "").strip()


def make_base(work: Path) -> None:
    """A Debian of debootstrap's as the image to build on."""
    tree = work / "debian"
    if not tree.exists():
        say("debootstrap makes the base")
        partial = work / "debian.partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(partial)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        partial.rename(tree)
    if buildah(work, "images", "--quiet", "--filter", f"reference={BASE}", capture=True):
        return
    say("the base becomes an image")
    container = buildah(work, "from", "scratch", capture=True)
    buildah(work, "add", "--quiet", container, str(tree), "/")
    buildah(work, "commit", "--quiet", container, BASE)
    buildah(work, "rm", container, capture=True)


def build(work: Path, target: str, version: str) -> str:
    """Build a target; returns the image's name."""
    say(f"builds {target}")
    name = f"{IMAGE}:{version}-{target}"
    # The build uses the host's CAs: a company's proxy with its own CA may be between it and the packages.
    certificates = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    buildah(
        work,
        *["bud", "--isolation", "chroot", "--format", "docker", "--target", target, "--tag", name, *certificates],
        *["--build-arg", f"BASE_IMAGE={BASE}", "--build-arg", f"VERSION={version}"],
        *["--ignorefile", str(HERE / "Dockerfile.dockerignore"), "--file", str(HERE / "Dockerfile"), str(ROOT)],
    )
    return name


def check_labels(work: Path, image: str, version: str) -> dict[str, str]:
    """The image says its version, its user and its probe; returns its environment."""
    config = json.loads(buildah(work, "inspect", "--type", "image", image, capture=True))["Docker"]["config"]
    assert config["Labels"]["org.opencontainers.image.version"] == version, config["Labels"]
    assert config["User"] == f"{USER}:{USER}", config["User"]
    assert config["Healthcheck"]["Test"] == ["CMD", "homophily", "health"], config["Healthcheck"]
    assert config["Entrypoint"] == ["homophily-entrypoint"], config["Entrypoint"]
    return dict(item.split("=", 1) for item in config["Env"])


def run_scenario(work: Path, image: str, environment: dict[str, str]) -> None:
    """Serve and fit with a read-only root file system."""
    container = buildah(work, "from", "--pull-never", image, capture=True)
    data = Path(tempfile.mkdtemp(dir=work))
    os.chown(data, int(USER), int(USER))
    try:
        say("buildah runs it as its user")
        who = buildah(work, "run", "--isolation", "chroot", container, "--", "id", "-u", capture=True)
        assert who == USER, who
        say("serves and fits, root file system read-only")
        tree = buildah(work, "mount", container, capture=True)
        variables = [f"{name}={value}" for name, value in environment.items()]
        done = subprocess.run(
            [
                *["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child"],
                *["/bin/sh", "-c", ISOLATED, "sh", *variables, "/bin/sh", "-c", SCENARIO],
            ],
            env=os.environ | {"ROOT": tree, "DATA": str(data), "IMAGE_USER": f"{USER}:{USER}"},
            text=True,
            stdout=subprocess.PIPE,
            timeout=600,
            check=False,
        )
        print(done.stdout, flush=True)
        assert done.returncode == 0, "the scenario failed; its last lines are above"
        assert "COMPILED=0" in done.stdout, "the first job compiled kernels that the image should have"
        assert "STOPPED" in done.stdout, "API and worker did not stop on SIGTERM"
        assert (data / "homophily.db").is_file(), "the data volume is empty"
    finally:
        shutil.rmtree(data, ignore_errors=True)
        buildah(work, "rm", container, capture=True)


def main() -> int:
    """Build, check, run; returns 0 if all of it worked, 3 if a tool is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, help="keep base, layers and images in this folder, for the next time")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu", help="cuda: on a GPU if there is one")
    chosen = parser.parse_args()
    try:
        check_tools()
    except Missing as error:
        print(f"The image cannot be tested here. {error}", file=sys.stderr)
        return 3
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    work = chosen.work.absolute() if chosen.work else Path(tempfile.mkdtemp(prefix="homophily-image-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        make_base(work)
        image = build(work, chosen.target, version)
        environment = check_labels(work, image, version)
        # Without a GPU, the image with CUDA must work like the other one.
        run_scenario(work, image, environment | ({"HOMOPHILY_DEVICE": "auto"} if chosen.target == "cuda" else {}))
    finally:
        if chosen.work is None:
            shutil.rmtree(work, ignore_errors=True)
    say(f"{image} passed")
    return 0


BEGAN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
