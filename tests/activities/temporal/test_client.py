"""A client that cannot connect logs in one sentence what failed, where, why and what to check, and connects by itself
once it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from activities.temporal import client as client_module
from activities.temporal import errors
from activities.temporal.client import TemporalClient
from activities.temporal.client_state import ClientHealth, ClientState
from activities.temporal.errors import Kind, Problem
from activities.temporal.supervision import supervise
from tests.support.programs.temporal import TemporalServer
from tests.support.refusing_server import pem, refusing, tls

PATIENCE = 60.0  # seconds
#: In TLS 1.3 a server rejects a certificate after the handshake: the client may see its alert, or a closed connection.
REJECTED = "fatal alert|rejects the client's certificate"
OURS = TLSConfig(server_root_ca_cert=pem("ca.pem"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WATCH", "SOON", "FIRST_PAUSE"):
        monkeypatch.setattr(client_module, name, 0.05)
    monkeypatch.setattr(client_module, "LONGEST_PAUSE", 0.2)
    for name in ("ADDRESS", "NAMESPACE", "API_KEY", "TLS", "PROFILE", "CONFIG_FILE"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)


@asynccontextmanager
async def client_of(profile: str | None = None, **overrides: Any) -> AsyncIterator[tuple[TemporalClient, ClientHealth]]:
    """A client at work."""
    health = ClientHealth("the node")
    client = TemporalClient("test", health, profile, overrides)
    task = asyncio.create_task(supervise("the client", client.run, health))
    try:
        yield client, health
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def state_when(health: ClientHealth, look: Callable[[ClientState], object]) -> ClientState:
    """The first state for which `look` holds."""
    async with asyncio.timeout(PATIENCE):
        while not look(health.state):  # noqa: ASYNC110 - it is also written by threads
            await asyncio.sleep(0.01)
    return health.state


def state_of(look: Callable[[ClientState], object], **overrides: Any) -> ClientState:
    """What a client with these settings comes to."""

    async def scene() -> ClientState:
        async with client_of(**overrides) as (_, health):
            return await state_when(health, look)

    return asyncio.run(scene())


def problem_of(**overrides: Any) -> ClientState:
    return state_of(lambda state: state.kind not in ("", "starting"), **overrides)


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_address_without_a_listener_is_unreachable() -> None:
    with closed_port() as address:
        state = problem_of(target_host=address)
    assert not state.connected and state.kind == Kind.UNREACHABLE
    assert state.reason.startswith(f"cannot reach Temporal at {address}: ")
    assert "refused" in state.reason.lower()
    assert state.reason.endswith("check that the server runs and that TEMPORAL_ADDRESS is right")


@pytest.mark.parametrize(("status", "message"), [(16, "Jwt is expired"), (7, "Request unauthorized.")])
def test_invalid_api_key_over_tls_is_unauthorized(status: int, message: str) -> None:
    with refusing(status, message, tls()) as address:
        state = problem_of(target_host=address, tls=OURS, api_key="wrong-key")
    assert state.kind == Kind.UNAUTHORIZED
    assert state.reason == (
        f"Temporal at {address} rejected this process's credentials for namespace default: {message.rstrip('.')}; "
        "check TEMPORAL_API_KEY or the client's certificate (or the profile): "
        "whether it is valid, has not expired and may use this namespace"
    )
    assert "wrong-key" not in str(state.as_dict())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tls": True}, "UnknownIssuer"),
        ({"tls": TLSConfig(server_root_ca_cert=pem("other.pem"))}, "UnknownIssuer|BadSignature|CaUsedAsEndEntity"),
        (
            {"tls": TLSConfig(server_root_ca_cert=pem("ca.pem"), domain="temporal.example")},
            "NotValidForName|not valid for",
        ),
        ({"tls": TLSConfig(server_root_ca_cert=b"not a certificate")}, ""),
        ({"tls": OURS}, REJECTED),  # the server requests the client's certificate
        (
            {
                "tls": TLSConfig(
                    server_root_ca_cert=pem("ca.pem"), client_cert=pem("other.pem"), client_private_key=pem("other.key")
                )
            },
            REJECTED,
        ),
    ],
    ids=["unknown CA", "another CA", "another name", "no certificate", "no client certificate", "foreign certificate"],
)
def test_invalid_certificate_is_a_tls_problem(settings: dict[str, Any], why: str) -> None:
    with refusing(7, "never sent", tls(ask_client=True)) as address:
        state = problem_of(target_host=address, **settings)
    assert state.kind == Kind.TLS, state.reason
    assert state.reason.startswith(f"the TLS connection to Temporal at {address} failed: ")
    assert re.search(why, state.reason), state.reason
    assert "check TEMPORAL_TLS" in state.reason


def test_valid_certificate_with_invalid_credentials_is_unauthorized() -> None:
    mine = TLSConfig(
        server_root_ca_cert=pem("ca.pem"), client_cert=pem("client.pem"), client_private_key=pem("client.key")
    )
    with refusing(7, "Request unauthorized.", tls(ask_client=True)) as address:
        assert problem_of(target_host=address, tls=mine).kind == Kind.UNAUTHORIZED


@pytest.mark.parametrize(
    ("context", "settings"), [(None, {"tls": True}), (tls, {})], ids=["TLS to a plain port", "plain to a TLS port"]
)
def test_tls_on_one_side_only_is_reported(
    context: Callable[[], ssl.SSLContext] | None, settings: dict[str, Any]
) -> None:
    with refusing(7, "never sent", context and context()) as address:
        state = problem_of(target_host=address, **settings)
    assert state.kind in (Kind.TLS, Kind.UNREACHABLE) and address in state.reason


def test_missing_certificate_file_is_a_configuration_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", str(tmp_path / "client.pem"))
    state = problem_of()
    assert state.kind == Kind.CONFIGURATION
    assert str(tmp_path / "client.pem") in state.reason and "TEMPORAL_CONFIG_FILE" in state.reason


@pytest.mark.temporal
def test_unknown_namespace_is_reported(temporal_server: TemporalServer) -> None:
    state = problem_of(target_host=temporal_server.address, namespace="nowhere")
    assert state.kind == Kind.NO_NAMESPACE
    assert state.reason.startswith(f"Temporal at {temporal_server.address} has no namespace nowhere: ")
    assert state.reason.endswith("create it with: temporal operator namespace create --namespace nowhere")


@pytest.mark.temporal
def test_corrected_profile_is_used_without_a_restart(
    temporal_server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "temporal.toml"
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))

    def write(**values: str) -> None:
        lines = "".join(f'{name} = "{value}"\n' for name, value in values.items())
        file.with_suffix(".new").write_text(f"[profile.default]\n{lines}")
        file.with_suffix(".new").replace(file)

    async def scene() -> None:
        with refusing(16, "Jwt is expired") as other:
            write(address=other)
            async with client_of() as (client, health):
                lost = await state_when(health, lambda state: state.kind == Kind.UNAUTHORIZED)
                write(address=temporal_server.address)
                found = await state_when(health, lambda state: state.connected)
                assert found.since >= lost.since and not found.reason
                first = await client.get()
                assert await first.service_client.check_health()
                # And a client that worked, and is rejected from now on.
                monkeypatch.setattr(client_module, "look_at", rejected)
                await state_when(health, lambda state: state.kind == Kind.UNAUTHORIZED)
                assert await client.get() is first, "nothing better is known"
                monkeypatch.undo()
                monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
                await state_when(health, lambda state: state.connected)

    async def rejected(client: object) -> None:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    with caplog.at_level(logging.INFO, "activities.temporal.client_state"):
        asyncio.run(scene())
    lines = [record.getMessage() for record in caplog.records if record.name == "activities.temporal.client_state"]
    assert [("connected to" in line, "rejected this process's credentials" in line) for line in lines] == [
        (False, True),
        (True, False),
        (False, True),
        (True, False),
    ], lines


@pytest.mark.temporal
def test_other_settings_replace_a_client_that_is_rejected(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at = client_module.look_at
    old: list[object] = []

    async def look(client: Any) -> None:
        """The server takes the first client's credentials no longer."""
        if client in old:
            raise RPCError("Jwt is expired", RPCStatusCode.UNAUTHENTICATED, b"")
        await look_at(client)

    async def scene() -> None:
        monkeypatch.setenv("TEMPORAL_GRPC_META_KEY", "one")
        async with client_of(target_host=temporal_server.address) as (client, health):
            first = await client.get()
            monkeypatch.setattr(client_module, "look_at", look)
            old.append(first)
            await state_when(health, lambda state: state.kind == Kind.UNAUTHORIZED)
            monkeypatch.setenv("TEMPORAL_GRPC_META_KEY", "two")
            await asyncio.wait_for(client.replaced(first), PATIENCE)
            assert health.state.connected and await client.get() is not first

    asyncio.run(scene())


@pytest.mark.temporal
def test_one_failed_check_does_not_disconnect(temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at, looks = client_module.look_at, []

    async def look(client: Any) -> None:
        looks.append(1)
        if len(looks) % 2:
            raise RPCError("Timeout expired", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        await look_at(client)

    async def scene() -> None:
        async with client_of(target_host=temporal_server.address) as (client, health):
            await client.get()
            monkeypatch.setattr(client_module, "look_at", look)
            async with asyncio.timeout(PATIENCE):
                while len(looks) < 6:
                    await asyncio.sleep(0.01)
                    assert health.state.connected

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("error", "kind", "detail"),
    [
        (
            RuntimeError(
                "Failed client connect: `get_system_info` call error after connection: Status { code: Unknown, "
                'message: "transport error", source: Some(tonic::transport::Error(Transport, hyper::Error(Io, Custom '
                '{ kind: InvalidData, error: "received fatal alert: CertificateExpired" }))) }'
            ),
            Kind.TLS,
            "received fatal alert: CertificateExpired",
        ),
        (
            RuntimeError(
                "Failed client connect: `get_system_info` call error after connection: Status { code: "
                'PermissionDenied, message: "Request unauthorized.", metadata: MetadataMap {}, source: None }'
            ),
            Kind.UNAUTHORIZED,
            "Request unauthorized",
        ),
        (RPCError("tcp connect error", RPCStatusCode.UNAVAILABLE, b""), Kind.UNREACHABLE, "tcp connect error"),
        (
            RPCError("Namespace n is not found.", RPCStatusCode.NOT_FOUND, b""),
            Kind.NO_NAMESPACE,
            "Namespace n is not found",
        ),
        (RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b""), Kind.OTHER, "workflow not found"),
        (RuntimeError("Worker validation failed: Namespace n was not found"), Kind.NO_NAMESPACE, None),
        (TimeoutError(), Kind.UNREACHABLE, "it does not respond in time"),
        (ValueError("invalid target URL: invalid port number"), Kind.CONFIGURATION, None),
        (ValueError("Must have both client cert and private key or neither"), Kind.CONFIGURATION, None),
        (
            ValueError("8 is not a valid WorkflowExecutionStatus"),
            Kind.OTHER,
            "ValueError: 8 is not a valid WorkflowExecutionStatus",
        ),
        (OSError(28, "No space left on device"), Kind.UNREACHABLE, None),
    ],
    ids=lambda value: value.name if isinstance(value, Kind) else "",
)
def test_classify_returns_the_kind_of_an_error(error: Exception, kind: Kind, detail: str | None) -> None:
    found = errors.classify(error)
    assert found.kind is kind
    if detail is not None:
        assert found.detail == detail


@pytest.mark.parametrize("end", ["hyper::Error(Io, Kind(ConnectionReset))", "operation was canceled"])
def test_connection_closed_without_a_reason_is_a_tls_problem(end: str) -> None:
    error = RuntimeError(f"Failed client connect: `get_system_info` call error after connection: {end}")
    mine, none = errors.classify(error, tls=True), errors.classify(error, tls=False)
    assert mine.kind is Kind.TLS and "rejects the client's certificate" in mine.detail
    assert none.kind is Kind.UNREACHABLE and "expects TLS" in none.detail
    later = RPCError("connection reset by peer", RPCStatusCode.UNAVAILABLE, b"")
    assert errors.classify(later, tls=True).kind is Kind.UNREACHABLE, "a server that was stopped"


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_one_sentence_without_a_line_break(kind: Kind) -> None:
    error = RuntimeError("a\nb " + "x" * 2000)
    text = errors.sentence(Problem(kind, errors.words(error)), "host:7233", "orders")
    assert "\n" not in text and len(text) < 800 and "; " in text
