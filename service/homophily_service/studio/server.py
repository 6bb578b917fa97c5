"""The page and its calls over HTTP, for one person on this machine.

A call must show the token that stands in the page's address behind "#": browsers do not send that part anywhere, and a
page from another origin does not know it. There are no cookies, so no request carries rights that its sender does not
have. The host's name is checked, so that a foreign name which resolves to this machine is refused.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from homophily_client import ClientError
from homophily_service.studio.workspace import BadRequest, Workspace, pairs_between, pairs_within

PAGE = Path(__file__).parent / "page"
MOST_FILE_BYTES = 2 << 30
MOST_BODY_BYTES = 4 << 20
#: Further sources of images follow that of `img-src`, if the user has allowed some.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; img-src 'self' data: blob:"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 403,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 503,
}

MakeWorkspace = Callable[[], AbstractAsyncContextManager[Workspace]]
Call = Callable[[Workspace, Any], Awaitable[Any]]


class Guard:
    """Refuses requests to other hosts, from other origins, or without the token."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str], image_hosts: Sequence[str]) -> None:
        self.app, self.token, self.hosts = app, token, frozenset(hosts)
        policy = " ".join([POLICY, *(f"https://{host}" for host in image_hosts)])
        headers = {"content-security-policy": policy, **HEADERS}
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(Request(scope))
        answer: ASGIApp = self.app if refusal is None else PlainTextResponse(refusal, 403)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> str | None:
        if _host_of(f"//{request.headers.get('host', '')}") not in self.hosts:
            return "This page is served to this machine's own names only."
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers["host"]:
            return "Pages from elsewhere may not act here."
        if request.url.path.startswith("/api/"):
            shown = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not secrets.compare_digest(shown.encode(), self.token.encode()):
                return "The token is wrong: open the address that `homophily studio` printed."
        return None


def application(
    make: MakeWorkspace, token: str, hosts: Sequence[str], first: dict[str, Any], image_hosts: Sequence[str] = ()
) -> ASGIApp:
    """The page for one workspace. ``first`` is what it opens: {"name": …}, {"file": path} or nothing."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with make() as workspace:
            app.state.workspace = workspace
            yield

    async def start(workspace: Workspace, _: Any) -> Any:
        if "file" in first:
            return {"opened": await workspace.open_file(Path(first["file"]))}
        if "name" in first:
            return {"opened": await workspace.open_name(first["name"])}
        return {"opened": None, "datasets": await workspace.datasets()}

    routes = [
        Route(f"/api/{name}", _answering(call), methods=["POST"]) for name, call in {"start": start, **CALLS}.items()
    ]
    routes += [Route("/api/file", _receive_file, methods=["POST"]), Route("/api/export", _export, methods=["POST"])]
    pages = Mount("/", StaticFiles(directory=PAGE, html=True))
    return Guard(Starlette(routes=[*routes, pages], lifespan=lifespan), token, hosts, image_hosts)


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


# -- calls: JSON in; JSON or bytes out


def _answering(call: Call) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await _explained(_called(request, call))

    return answer


async def _called(request: Request, call: Call) -> Response:
    found = await call(request.app.state.workspace, await _body(request))
    if isinstance(found, bytes):
        return Response(found, media_type="application/octet-stream")
    return JSONResponse(found)


async def _explained(answer: Awaitable[Response]) -> Response:
    """An error as a sentence and a status; bugs stay bugs."""
    try:
        return await answer
    except ClientError as error:
        parts = [error.message, *(f"{one.field}: {one.description}" for one in error.violations)]
        return JSONResponse({"error": "; ".join(dict.fromkeys(parts))}, _STATUS.get(error.code, 500))
    except (ValueError, TypeError) as error:
        # What the readers of files and the client refuse before anything is sent.
        return JSONResponse({"error": str(error)}, 400)


async def _body(request: Request) -> Any:
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > MOST_BODY_BYTES:
            raise BadRequest(f"the request is larger than {MOST_BODY_BYTES >> 20} MiB: select fewer points")
    body = json.loads(received or b"{}")
    if not isinstance(body, dict):
        raise BadRequest("the request must be an object")
    return body


async def _receive_file(request: Request) -> Response:
    """A dropped file: its name in a header, its bytes as the body."""

    async def received() -> Response:
        name = Path(unquote(request.headers.get("x-file-name", ""))).name
        if not name:
            raise BadRequest("x-file-name: the file's name is missing")
        with tempfile.TemporaryDirectory(prefix="homophily-studio-") as folder:
            path, size = Path(folder) / name, 0
            with path.open("wb") as file:
                async for piece in request.stream():
                    size += len(piece)
                    if size > MOST_FILE_BYTES:
                        raise BadRequest(f"{name}: is larger than {MOST_FILE_BYTES >> 30} GiB; use `homophily upload`")
                    file.write(piece)
            return JSONResponse(await request.app.state.workspace.open_file(path))

    return await _explained(received())


async def _export(request: Request) -> Response:
    """A file to keep."""

    async def exported() -> Response:
        workspace, body = request.app.state.workspace, await _body(request)
        what, form = _text(body, "what"), _text(body, "format")
        if what == "labels":
            found = await workspace.labels_table(_text(body, "model"), form)
        elif what == "links":
            found = await workspace.links_table(_text(body, "embedding"), form)
        elif what == "page":
            found, form = await workspace.page(_text(body, "embedding"), _text(body, "model", None)), "html"
        else:
            raise BadRequest(f"what: must be labels, links or page. Got {what!r} instead.")
        name = {"content-disposition": f"attachment; filename*=utf-8''{quote(what)}.{quote(form)}"}
        return Response(found, media_type="application/octet-stream", headers=name)

    return await _explained(exported())


# -- fields of a request

_REQUIRED: Any = object()


def _text(body: dict[str, Any], field: str, default: Any = _REQUIRED) -> Any:
    value = body.get(field, default)
    if value is _REQUIRED or (value is not default and not isinstance(value, str)):
        raise BadRequest(f"{field}: must be a string")
    return value


def _points(body: dict[str, Any], field: str) -> list[int]:
    value = body.get(field, [])
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise BadRequest(f"{field}: must be positions of points")
    return value


def _point(body: dict[str, Any]) -> int:
    points = _points(body, "points")
    if len(points) != 1:
        raise BadRequest("points: must be one position")
    return points[0]


def _pairs(body: dict[str, Any], field: str) -> list[tuple[int, int]]:
    value = body.get(field, [])
    if not isinstance(value, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair) for pair in value
    ):
        raise BadRequest(f"{field}: must be pairs of positions")
    return [(first, second) for first, second in value]


def _labels(body: dict[str, Any]) -> dict[int, str]:
    value = body.get("labels", [])
    if not isinstance(value, list) or not all(
        isinstance(one, list) and len(one) == 2 and type(one[0]) is int and isinstance(one[1], str) for one in value
    ):
        raise BadRequest("labels: must be pairs of a position and a class")
    if any(not label.strip() for _, label in value):
        raise BadRequest("labels: a class must have a name")
    return {point: label.strip() for point, label in value}


async def _label(workspace: Workspace, body: dict[str, Any]) -> Any:
    given = _labels(body), _points(body, "withdrawn")
    return {"job": await workspace.label(_text(body, "dataset"), _text(body, "model", None), *given)}


async def _embed(workspace: Workspace, body: dict[str, Any]) -> Any:
    kinds = ("must_link", "cannot_link", "withdrawn_must", "withdrawn_cannot")
    links = {kind: _pairs(body, kind) for kind in kinds}
    if same := _points(body, "same"):
        links["must_link"] += pairs_within(same)
    if groups := body.get("groups"):
        if groups not in ("must_link", "cannot_link"):
            raise BadRequest("groups: must be must_link or cannot_link")
        links[groups] += pairs_between(_points(body, "first"), _points(body, "second"))
    return {"job": await workspace.embed(_text(body, "source"), links, _text(body, "labels_of", None))}


async def _suggest(workspace: Workspace, body: dict[str, Any]) -> Any:
    source = _text(body, "source")
    exclude: Any = _pairs(body, "excluded_pairs") or _points(body, "excluded_points")
    return await workspace.suggest(source, min(100, body.get("count", 10)), exclude)


async def _explain(workspace: Workspace, body: dict[str, Any]) -> Any:
    return await workspace.explain(_text(body, "model"), _point(body))


async def _column(workspace: Workspace, body: dict[str, Any]) -> Any:
    values, categories = await workspace.column(_text(body, "dataset"), _text(body, "name"))
    head = json.dumps(categories).encode()
    return len(head).to_bytes(4, "little") + head + values


async def _cancel(workspace: Workspace, body: dict[str, Any]) -> Any:
    await workspace.cancel(_text(body, "job"))
    return {}


async def _rows(workspace: Workspace, body: dict[str, Any]) -> Any:
    return workspace.rows(_text(body, "dataset"), _points(body, "points")[:100])


async def _image(workspace: Workspace, body: dict[str, Any]) -> Any:
    return await workspace.image(_text(body, "dataset"), _point(body))


CALLS: dict[str, Call] = {
    "open": lambda workspace, body: workspace.open_name(_text(body, "name")),
    "state": lambda workspace, body: workspace.state_of(_text(body, "dataset")),
    "coordinates": lambda workspace, body: workspace.coordinates(_text(body, "embedding")),
    "clusters": lambda workspace, body: workspace.clusters(_text(body, "embedding")),
    "links": lambda workspace, body: workspace.links(_text(body, "embedding")),
    "answers": lambda workspace, body: workspace.answers(_text(body, "model")),
    "ids": lambda workspace, body: workspace.ids(_text(body, "model")),
    "find": lambda workspace, body: workspace.find(_text(body, "dataset"), _text(body, "text")),
    "job": lambda workspace, body: workspace.job(_text(body, "job")),
    "rows": _rows,
    "image": _image,
    "column": _column,
    "label": _label,
    "embed": _embed,
    "cancel": _cancel,
    "suggest": _suggest,
    "explain": _explain,
}
