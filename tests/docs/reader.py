"""Runs examples as a reader would: one Python and one shell for a page, in an empty folder.

A process of its own: it reads ``{"folder": …, "blocks": [[kind, place, code], …]}`` from standard input, a page a line,
and answers ``{"outputs": […], "error": …}``. Pages share the process, as importing the packages takes longer than most
examples.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Any


class Shell:
    """A shell that stays open for a page; a command that fails ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["sh", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, commands: str) -> str:
        """What the commands print; an error if one fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        end = secrets.token_hex(8)
        self.process.stdin.write(f"{{\n{commands}\n}} < /dev/null\necho {end}\n")
        self.process.stdin.flush()
        said: list[str] = []
        for line in self.process.stdout:
            if line.rstrip("\n").endswith(end):
                return "".join([*said, line.rstrip("\n").removesuffix(end)])
            said.append(line)
        raise RuntimeError(f"a command failed with {self.process.wait()}:\n{''.join(said)[-4000:]}")

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def read(page: dict[str, Any]) -> dict[str, Any]:
    """Run the examples of a page."""
    os.chdir(page["folder"])
    names: dict[str, Any] = {"__name__": "__main__"}
    shell, outputs, place = None, [], ""
    try:
        for kind, place, code in page["blocks"]:
            if kind == "python":
                said = io.StringIO()
                with redirect_stdout(said), redirect_stderr(said):
                    exec(compile(code, place, "exec"), names)
                outputs.append(said.getvalue())
            else:
                shell = shell or Shell()
                outputs.append(shell.run(code))
    except BaseException:
        return {"outputs": outputs, "error": f"{place}\n{traceback.format_exc()[-6000:]}"}
    finally:
        if shell is not None:
            shell.close()
    return {"outputs": outputs, "error": None}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(read(json.loads(line))), flush=True)
