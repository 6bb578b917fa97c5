"""The audit log: a line of JSON for each call that changes something or is refused, by the logger homophily.audit.

A token is named by its id, never by its secret; the content of requests is not logged. Calls that only read are in the
general log, with the same fields (:class:`homophily_service.api.interceptors.Logging`).
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from io import TextIOWrapper
from typing import Any

from prometheus_client import Counter

from homophily_service.api.access import AuditRecord, current_record
from homophily_service.api.interceptors import Context, Interceptor, Observed
from homophily_service.runtime.logs import JsonLines
from homophily_service.runtime.settings import Settings

_log = logging.getLogger("homophily.audit")
_failures_log = logging.getLogger(__name__)
FAILURES = Counter("homophily_audit_failures_total", "Lines of the audit log that could not be written to its file")

# Prefixes of the methods that only read.
_LOOKS = ("Get", "List", "Wait", "Watch", "Read", "Predict", "Suggest", "Explain")
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_OWN = "/homophily."
_UNRECORDED = nullcontext()


class Audit(Interceptor):
    """Writes the line when the call has ended."""

    def __init__(self, settings: Settings) -> None:
        self.which, self.shows_certificates = settings.audit, settings.tls_client_ca is not None

    def around(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Note who calls, and write the outcome."""
        if self.which == "off":
            return _UNRECORDED
        done = current_record()
        done.certificate = _certificate(context) if self.shows_certificates else ""
        return Observed(context, self._writer(method, done))

    def _writer(self, method: str, done: AuditRecord) -> Callable[[str, float], None]:
        def write(code: str, _: float) -> None:
            if self._counts(method, code):
                fields = {"method": method.rpartition("/")[2], "code": code, **done.fields()}
                _log.info("call", extra={"fields": fields})

        return write

    def _counts(self, method: str, code: str) -> bool:
        if code in _REFUSALS or self.which == "all":
            return True
        return method.startswith(_OWN) and not method.rpartition("/")[2].startswith(_LOOKS)


def _certificate(context: Context) -> str:
    """The subject of the caller's certificate, which the handshake has checked."""
    return next(iter(context.auth_context().get("x509_subject", ())), b"").decode("utf-8", "replace")


class _PrivateFile(logging.handlers.WatchedFileHandler):
    """A file that only its owner can read, opened again after logrotate or the like has moved it.

    A line that cannot be written, for example on a full disk, goes to standard error and is counted.
    """

    # Whether the file may end in the middle of a line.
    _is_cut = False

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=opener)  # type: ignore[return-value]

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; a failure does not affect the call that it is about."""
        line = self.format(record)
        try:
            self.reopenIfNeeded()
            if self.stream is None:
                self.stream = self._open()
            self.stream.write(f"\n{line}\n" if self._is_cut else f"{line}\n")
            self.stream.flush()
            self._is_cut = False
        except OSError as error:
            FAILURES.inc()
            self._is_cut = True
            self._drop()
            with suppress(OSError, ValueError):
                print(line, file=sys.stderr, flush=True)
            _failures_log.error("a line of the audit log was not written, it is in the line before: %s", error)

    def _drop(self) -> None:
        """Close the file without its buffer, which would be written twice."""
        stream, self.stream = self.stream, None
        with suppress(OSError):
            if stream is not None:
                stream.close()


def start_audit(settings: Settings) -> Callable[[], None]:
    """Send the lines where the settings say; returns a function that undoes this."""
    _log.setLevel(logging.INFO)
    if settings.audit_file is None:
        return lambda: None
    settings.audit_file.parent.mkdir(parents=True, exist_ok=True)
    handler = _PrivateFile(settings.audit_file, encoding="utf-8")
    handler.setFormatter(JsonLines())
    _log.addHandler(handler)
    _log.propagate = False

    def stop() -> None:
        _log.removeHandler(handler)
        _log.propagate = True
        handler.close()

    return stop


def note(action: str, **fields: Any) -> None:
    """Write a line about an action without a call, such as a token created on the command line."""
    _log.info(action, extra={"fields": fields})
