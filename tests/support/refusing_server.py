"""A server that speaks just enough HTTP/2 and gRPC to refuse every call with a status, with TLS or without.

For what a Temporal dev server cannot be: one with a certificate, or one that rejects an API key.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

#: Made once, for a hundred years: a CA, a server's and a client's certificate of it, and one of another CA.
CERTIFICATES = Path(__file__).with_name("certificates")

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _PING = 1, 4, 6
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_STATUS_200 = b"\x88"  # an entry of HPACK's static table


def pem(name: str) -> bytes:
    """A certificate or key by its file's name."""
    return (CERTIFICATES / name).read_bytes()


def tls(*, ask_client: bool = False) -> ssl.SSLContext:
    """A server's side of TLS, which can ask its clients for a certificate of the test's CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    context.set_alpn_protocols(["h2"])
    if ask_client:
        context.load_verify_locations(CERTIFICATES / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def refusing(status: int, message: str, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that refuses with a gRPC status and message."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = _answer(status, message)
        threading.Thread(target=_accept, args=(listener, answer, context), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # ends `accept`


def _accept(listener: socket.socket, answer: bytes, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, answer, context), daemon=True).start()


def _serve(connection: socket.socket, answer: bytes, context: ssl.SSLContext | None) -> None:
    with contextlib.suppress(OSError, EOFError):
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        _exactly(connection, len(_PREFACE))
        connection.sendall(_frame(_SETTINGS))
        while True:
            head = _exactly(connection, 9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
            body = _exactly(connection, int.from_bytes(head[:3], "big"))
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                connection.sendall(_frame(kind, _ACK, 0, body if kind == _PING else b""))
            if kind == _HEADERS:
                connection.sendall(_frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, answer))
    connection.close()


def _answer(status: int, message: str) -> bytes:
    """The header block of a refused call, nothing of it compressed."""
    fields = {"content-type": "application/grpc", "grpc-status": str(status), "grpc-message": quote(message)}
    return _STATUS_200 + b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(value: str) -> bytes:
    data = value.encode()
    assert len(data) < 127
    return bytes((len(data),)) + data


def _frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
