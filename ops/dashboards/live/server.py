"""The live dashboard's server: a page, its board as server-sent events, and nothing that changes anything.

It listens on the loopback unless an address is given, responds to GET alone, and rejects a Host header that is not its
own, so that a foreign page cannot reach it by a name that resolves to the loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops.dashboards import assets
from ops.dashboards.live.hub import MOST_VIEWERS, Hub
from ops.dashboards.live.trend import trend

_STATIC = Path(__file__).with_name("static")
#: The page loads nothing from elsewhere, and no other page may embed it or load its scripts, which carry the data.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class _Guard:
    """Rejects foreign Host headers, and adds the headers of every response."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        host = _without_port(Request(scope).headers.get("host", ""))
        if host not in self._hosts if self._hosts else not _own(host):
            rejected = PlainTextResponse("this Host header is not the dashboard's\n", 403)
            await rejected(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _without_port(host: str) -> str:
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _own(host: str) -> bool:
    """Return whether a Host header is an address or this machine's name: no name that another can resolve to it."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() in ("localhost", socket.gethostname().lower())
    return True


class _Site:
    """The site's files; not found until there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, StaticFiles(directory=folder, html=True, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        there = await asyncio.to_thread(self._folder.is_dir)
        missing = PlainTextResponse("there is no site yet; rehome report writes it\n", 404)
        await (self._files if there else missing)(scope, receive, send)


def hosts_of(listen: str) -> tuple[str, ...]:
    """Return the Host headers that are accepted; (), where the server listens on every address, for any address and
    this machine's name.
    """
    try:
        address = ipaddress.ip_address(listen)
    except ValueError:
        return (*LOOPBACK, listen.lower())
    if address.is_unspecified:
        return ()
    return (*LOOPBACK, f"[{address}]" if address.version == 6 else str(address))


def application(hub: Hub, hosts: Collection[str] = LOOPBACK, site: Path | None = None) -> Starlette:
    """Return the application. `hosts` are the accepted Host headers without their ports, as `hosts_of` returns them.

    `site` is the folder of the site over the history, which may not exist yet; it is served below /history.
    """
    files = {
        "/": (_STATIC / "live.html").read_text(),
        "/live.js": (_STATIC / "live.js").read_text(),
        "/live.css": assets.css() + (_STATIC / "live.css").read_text(),
    }
    kinds = {"/": "text/html", "/live.js": "text/javascript", "/live.css": "text/css"}

    async def file(request: Request) -> Response:
        return Response(files[request.url.path], media_type=kinds[request.url.path])

    async def board(_: Request) -> Response:
        return JSONResponse(hub.board())

    async def trends(_: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(trend, site) if site is not None else None)

    async def events(_: Request) -> Response:
        if hub.viewers >= MOST_VIEWERS:
            return PlainTextResponse(f"{MOST_VIEWERS} viewers are connected; close one of them\n", 503)

        async def stream() -> AsyncIterator[str]:
            async for text in hub.boards():
                yield f"data: {text}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        hub.start()
        publishing = asyncio.create_task(hub.publish())
        try:
            yield
        finally:
            publishing.cancel()
            hub.stop()

    routes: list[BaseRoute] = [Route(path, file, methods=["GET"]) for path in files]
    paths = (("/board.json", board), ("/events", events), ("/trend.json", trends))
    routes += [Route(path, respond, methods=["GET"]) for path, respond in paths]
    if site is not None:
        routes.append(Mount("/history", _Site(site)))
    return Starlette(routes=routes, middleware=[Middleware(_Guard, hosts=tuple(hosts))], lifespan=lifespan)


def server(app: Starlette) -> uvicorn.Server:
    """Return a server for an open socket; viewers' streams do not delay its end."""
    return uvicorn.Server(
        uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1, server_header=False)
    )
