"""rehome dashboard: a page that shows what moves now, for people to leave open."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from ops.cli import output
from ops.cli.dashboard.compose import Composer, reported
from ops.cli.dashboard.facts import BROKERS, NODES, TEMPORAL, NodesFacts
from ops.cli.dashboard.readers import BrokersReader, NodesReader, TemporalReader
from ops.cli.options import Bootstrap, Cluster, Data, TemporalAddress, ui_address
from ops.cli.target import Target, resolve
from ops.dashboards.live import server
from ops.dashboards.live.hub import Hub, Reader
from ops.stack.errors import OpsError

PORT = 8480


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("dashboard")(dashboard)


def dashboard(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for any free one.")] = PORT,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="ADDRESS", help="Another address than the loopback. The page has no authentication."
        ),
    ] = "127.0.0.1",
    temporal_ui: Annotated[
        str | None,
        typer.Option("--temporal-ui", metavar="URL", help="Temporal's UI, for links to runs (default: the stack's)."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option("--site", metavar="DIR", help="The site that `rehome report` wrote (default: the stack's)."),
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
) -> None:
    """Serve a live, read-only page of plans, moves and reassignments until Ctrl-C: percent, rate, ETA, what holds them.

    One poller reads the nodes and Temporal for all viewers, while the page is open in a browser.
    """
    target = resolve(data, bootstrap, temporal_address, cluster)
    if not target.bootstrap and not target.temporal_address:
        target.need_kafka()
    hub = hub_of(target, ui_of(target, temporal_ui), cluster)
    sock = _socket(listen, port)
    host, bound = sock.getsockname()[:2]
    if listen not in server.LOOPBACK:
        output.say(f"warning: every host that reaches {host} can read the page: it has no authentication")
    where = f"[{host}]" if ":" in host else host
    typer.echo(f"http://{where}:{bound}/")
    output.say("read only; Ctrl-C ends it, not the moves")
    server.server(server.application(hub, server.hosts_of(listen), site_of(target, site))).run(sockets=[sock])


def hub_of(target: Target, temporal_ui: str = "", named: str | None = None) -> Hub:
    """Return the poller of a cluster's sources; `named` is the option --cluster."""
    readers: dict[str, Reader] = {}
    if target.apache_kafka:
        readers[BROKERS] = BrokersReader(target)
    elif target.bootstrap:
        readers[NODES] = NodesReader(target)
    composer = Composer(target.cluster, temporal_ui)
    made: list[Hub] = []
    if target.temporal_address:
        readers[TEMPORAL] = TemporalReader(target, lambda: reported(_nodes(made)), named=named)
    made.append(Hub(readers, composer.compose))
    return made[0]


def _nodes(made: list[Hub]) -> NodesFacts:
    """Return what the nodes reported last."""
    value = made[0].last(NODES)
    return value if isinstance(value, NodesFacts) else NodesFacts()


def ui_of(target: Target, given: str | None) -> str:
    """Return the address of Temporal's UI for the namespace, "" if it is unknown. Raises `UsageError`."""
    address = "" if given is None else ui_address(given)
    of_stack = target.stack is not None and target.temporal_address == target.stack.temporal_address
    url = address or (target.stack.ui_url if of_stack and target.stack is not None else "")
    return f"{url.rstrip('/')}/namespaces/{target.namespace}" if url else ""


def site_of(target: Target, given: Path | None) -> Path | None:
    """Return the folder of the site over the history, whether it exists or not; None if it is unknown."""
    if given is not None:
        return given.expanduser().absolute()
    return target.stack.exports.parent / "report" / "site" if target.stack is not None else None


def _socket(listen: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `OpsError` if the port is taken, or the address is not one of this host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(listen, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OpsError(f"--listen {listen} is not an address of this host: {error.strerror or error}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise OpsError(
            f"cannot listen on {listen}:{port} ({error.strerror}): is another dashboard running? use another --port"
        ) from error
    return made
