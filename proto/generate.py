"""Generate service/homophily_service/_pb from the protos; with --check, fail if the committed code differs.

The generated modules would import each other as ``homophily.v1``, which is the core's name: the imports are rewritten.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent
TARGET = PROTOS.parent / "service" / "homophily_service" / "_pb"
IMPORT = re.compile(r"^from homophily\.v1 ", re.MULTILINE)
BIN = Path(sys.executable).parent


def generate() -> dict[str, str]:
    """The generated files by name."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("homophily/v1/*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "protoc",
            f"-I{PROTOS}",
            f"-I{well_known}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
            f"--plugin=protoc-gen-mypy={BIN / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={BIN / 'protoc-gen-mypy_grpc'}",
            f"--mypy_out=quiet:{folder}",
            f"--mypy_grpc_out=quiet:{folder}",
        ]
        if protoc.main([*arguments, *sources]) != 0:
            raise SystemExit("protoc failed")
        written = sorted(Path(folder, "homophily", "v1").iterdir())
        files = {path.name: IMPORT.sub("from homophily_service._pb ", path.read_text()) for path in written}
    # Only one of the protos has a service; the others' empty stubs are noise.
    files = {name: text for name, text in files.items() if "_pb2_grpc" not in name or "service" in name}
    return files | {"__init__.py": '"""Generated from proto/ by proto/generate.py; do not edit."""\n'}


def main() -> None:
    """Write the files, or compare them."""
    files = generate()
    if "--check" in sys.argv:
        found = {path.name: path.read_text() for path in TARGET.glob("*.py*") if path.is_file()}
        if found != files:
            wrong = sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))
            raise SystemExit(f"generated code is not that of the protos: {', '.join(wrong)}; run make proto")
        return
    TARGET.mkdir(exist_ok=True)
    for path in TARGET.glob("*.py*"):
        path.unlink()
    for name, text in files.items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
