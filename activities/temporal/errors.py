"""Why a process has no connection to Temporal: the kind of the error, and one sentence for the operator.

The SDK's core raises `RuntimeError` with the text of the Rust error for everything that fails while it connects, and
`RPCError` with a gRPC status afterwards; the gRPC status "unknown: transport error" hides a TLS alert of the server. So
the text decides if the status does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from temporalio.service import RPCError, RPCStatusCode

from activities.temporal.supervision import innermost

LONGEST = 300  # characters of the server's or library's error


class Kind(StrEnum):
    """The kind of a client's problem with its server."""

    UNREACHABLE = "unreachable"
    TLS = "tls"
    UNAUTHORIZED = "unauthorized"
    NO_NAMESPACE = "namespace missing"
    CONFIGURATION = "configuration"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind with the error of the library or the server, in one line."""

    kind: Kind
    detail: str


class BadConfiguration(Exception):
    """The client's settings cannot be read: the profile, a certificate's file, an address."""


_BY_STATUS = {
    RPCStatusCode.UNAVAILABLE: Kind.UNREACHABLE,
    RPCStatusCode.DEADLINE_EXCEEDED: Kind.UNREACHABLE,
    RPCStatusCode.CANCELLED: Kind.UNREACHABLE,
}

_TLS = (
    r"certificate|\btls\b|handshake|fatal alert|UnknownIssuer|UnknownCA|NotValidForName|InvalidContentType"
    r"|InvalidMessage|CorruptMessage|PrivateKey"
)
#: In this order: the text of a failed connection may contain a TLS alert.
_BY_TEXT = (
    (Kind.TLS, _TLS),
    (Kind.UNAUTHORIZED, r"code: (Unauthenticated|PermissionDenied)|unauthori[sz]ed|permission denied"),
    (Kind.NO_NAMESPACE, r"namespace\b.*\bnot found"),
    (
        Kind.CONFIGURATION,
        r"invalid uri|invalid target url|relative URL|invalid headers|InvalidUri|invalid port|private key or neither",
    ),
    (
        Kind.UNREACHABLE,
        r"tcp connect error|dns error|connection refused|timed out|timeout|transport error|unavailable"
        r"|Server connection error|connection reset|broken pipe|GoAway|http2 error|operation was canceled"
        r"|stream closed|connection closed|code: (Unavailable|DeadlineExceeded|Cancelled)",
    ),
)

#: Errors of a connection that was closed without a reason, and the prefix of errors while connecting.
_CLOSED = (
    r"operation was canceled|stream closed|connection closed|ConnectionReset|connection reset|broken ?pipe|http2 error"
    r"|UnexpectedEof|invalid size"
)
_CONNECTING = "Failed client connect: "
_HEAD = re.compile(
    r"^Failed client connect: |^Server connection error: |^`get_system_info` call error after connection: "
)
#: The most specific parts of a Rust error, the innermost first.
_WORDS = (
    re.compile(r'error: "((?:[^"\\]|\\.)+)"'),
    re.compile(r"(received fatal alert: \w+)"),
    re.compile(r"error: ((?:InvalidCertificate|AlertReceived|InvalidMessage)\(.+\)) \}\)\)"),
    re.compile(r'message: "((?:[^"\\]|\\.)+)"'),
)


def classify(error: BaseException, *, tls: bool | None = None) -> Problem:
    """Return the problem behind an error of the client or a worker; `tls` is whether the client uses TLS, if known.

    A server that rejects a client's certificate in TLS 1.3, and one that expects TLS, closes a new connection; the
    client may not read the alert before.
    """
    error = innermost(error)
    detail = words(error)
    closed = _CONNECTING in str(error) and re.search(_CLOSED, str(error), re.IGNORECASE)
    if tls is not None and closed and not re.search(_TLS, str(error), re.IGNORECASE):
        if tls:
            why = "it closed the connection, as it does when it rejects the client's certificate, or has no TLS"
            return Problem(Kind.TLS, f"{why} ({detail})")
        return Problem(Kind.UNREACHABLE, f"it closed the connection, as it does when it expects TLS ({detail})")
    if isinstance(error, BadConfiguration):
        return Problem(Kind.CONFIGURATION, detail)
    if isinstance(error, RPCError):
        if error.status in (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED):
            return Problem(Kind.UNAUTHORIZED, detail)
        if error.status is RPCStatusCode.NOT_FOUND and "namespace" in detail.lower():
            return Problem(Kind.NO_NAMESPACE, detail)
    if isinstance(error, (RPCError, RuntimeError, OSError, ValueError)):
        for kind, pattern in _BY_TEXT:
            if re.search(pattern, str(error), re.IGNORECASE):
                return Problem(kind, detail)
    if isinstance(error, RPCError):
        return Problem(_BY_STATUS.get(error.status, Kind.OTHER), detail)
    if isinstance(error, (OSError, TimeoutError)):
        return Problem(Kind.UNREACHABLE, detail or "it does not respond in time")
    return Problem(Kind.OTHER, f"{type(error).__name__}: {detail}" if detail else type(error).__name__)


def words(error: BaseException) -> str:
    """Return an error's text in one line, without the wrapping of the SDK's core."""
    text = " ".join(str(error).split())
    wrapped = _HEAD.search(text) is not None
    while (shorter := _HEAD.sub("", text)) != text:
        text = shorter
    if wrapped:
        for pattern in _WORDS:
            if found := pattern.search(text):
                text = found[1].replace('\\"', '"')
                break
    text = text.rstrip(". ")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


_WHAT = {
    Kind.UNREACHABLE: "cannot reach Temporal at {address}",
    Kind.TLS: "the TLS connection to Temporal at {address} failed",
    Kind.UNAUTHORIZED: "Temporal at {address} rejected this process's credentials for namespace {namespace}",
    Kind.NO_NAMESPACE: "Temporal at {address} has no namespace {namespace}",
    Kind.CONFIGURATION: "the settings of the connection to Temporal are not valid",
    Kind.OTHER: "the connection to Temporal at {address} (namespace {namespace}) failed",
}
_NEXT = {
    Kind.UNREACHABLE: "check that the server runs and that TEMPORAL_ADDRESS is right",
    Kind.TLS: "check TEMPORAL_TLS, the CA, the client's certificate and key (TEMPORAL_TLS_..., or the profile): "
    "whether they match this server and have not expired",
    Kind.UNAUTHORIZED: "check TEMPORAL_API_KEY or the client's certificate (or the profile): "
    "whether it is valid, has not expired and may use this namespace",
    Kind.NO_NAMESPACE: "check TEMPORAL_NAMESPACE, or create it with: "
    "temporal operator namespace create --namespace {namespace}",
    Kind.CONFIGURATION: "check the profile (TEMPORAL_CONFIG_FILE, TEMPORAL_PROFILE) and the TEMPORAL_... variables",
    Kind.OTHER: "see this process's log",
}


def sentence(problem: Problem, address: str, namespace: str) -> str:
    """Return a sentence with what failed, where, why, and what to check."""
    what = _WHAT[problem.kind].format(address=address or "an unknown address", namespace=namespace)
    return f"{what}: {problem.detail or 'no reason given'}; {_NEXT[problem.kind].format(namespace=namespace)}"
