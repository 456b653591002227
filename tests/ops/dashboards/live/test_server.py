"""The server: read only, its own hosts only, nothing from elsewhere, a bounded number of viewers."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ops.dashboards.live import server
from tests.ops.dashboards.live.sample import board, served


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(lambda _, now: board(at=now)) as url:
        yield urlsplit(url).netloc


def asked(
    address: str, path: str, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path, headers={"Host": host or address})
    return connection.getresponse(), connection


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "text/html"), ("/live.js", "text/javascript"), ("/live.css", "text/css")]
)
def test_page_may_load_from_its_own_origin_only(address: str, path: str, kind: str) -> None:
    response, connection = asked(address, path)
    text = response.read().decode()
    assert response.status == 200 and response.headers["content-type"].startswith(kind)
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cross-origin-resource-policy"] == "same-origin", "another page cannot run it as a script"
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    connection.close()


def test_board_is_json_and_streamed_as_events(address: str) -> None:
    response, connection = asked(address, "/board.json")
    assert json.loads(response.read())["cluster"] == "prod"
    connection.close()
    response, connection = asked(address, "/events")
    assert response.headers["content-type"].startswith("text/event-stream")
    boards = []
    while len(boards) < 2:
        line = response.readline().decode()
        if line.startswith("data: "):
            boards.append(json.loads(line.removeprefix("data: ")))
    assert boards[0]["at"] < boards[1]["at"]
    connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/board.json", "/events"])
def test_nothing_can_be_changed(address: str, path: str, method: str) -> None:
    response, connection = asked(address, path, method)
    assert response.status == 405
    connection.close()


@pytest.mark.parametrize("path", ["/../board.py", "/%2e%2e/board.py", "/static/live.js", "//etc/passwd"])
def test_other_paths_do_not_exist(address: str, path: str) -> None:
    response, connection = asked(address, path)
    assert response.status == 404
    connection.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:80", "localhost.evil"]
)
def test_foreign_host_header_is_rejected(address: str, host: str) -> None:
    response, connection = asked(address, "/board.json", host=host)
    assert response.status == 403 and b"prod" not in response.read()
    connection.close()


@pytest.mark.parametrize(
    ("listen", "hosts"),
    [
        ("127.0.0.1", (*server.LOOPBACK, "127.0.0.1")),
        ("10.1.2.3", (*server.LOOPBACK, "10.1.2.3")),
        ("::1", (*server.LOOPBACK, "[::1]")),
        ("ops.Example", (*server.LOOPBACK, "ops.example")),
        ("0.0.0.0", ()),
        ("::", ()),
    ],
)
def test_accepted_hosts_follow_the_address(listen: str, hosts: tuple[str, ...]) -> None:
    assert server.hosts_of(listen) == hosts


def test_server_on_every_address_accepts_addresses_and_its_own_name_only() -> None:
    with served(lambda _, now: board(at=now), hosts=()) as url:
        for host, status in (
            ("10.1.2.3:8480", 200), ("[::1]:8480", 200), ("localhost", 200), (socket.gethostname(), 200),
            ("evil.example", 403), ("10.1.2.3.evil", 403),
        ):  # fmt: skip
            response, connection = asked(urlsplit(url).netloc, "/live.js", host=host)
            assert response.status == status, host
            connection.close()


def test_viewers_beyond_the_limit_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_VIEWERS", 1)
    with served(lambda _, now: board(at=now)) as url:
        address = urlsplit(url).netloc
        first, connection = asked(address, "/events")
        assert first.readline().startswith(b"data: ")
        second, rejected = asked(address, "/events")
        assert second.status == 503 and b"close one of them" in second.read()
        rejected.close()
        connection.close()


def test_site_is_served_below_history_and_nothing_beside_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("the site")
    (tmp_path / "secret").write_text("secret")
    with served(lambda _, now: board(at=now), site=tmp_path / "none") as url:
        response, connection = asked(urlsplit(url).netloc, "/history/index.html")
        assert response.status == 404 and b"rehome report writes it" in response.read()
        connection.close()
    (site / "link").symlink_to(tmp_path / "secret")
    with served(lambda _, now: board(at=now), site=site) as url:
        address = urlsplit(url).netloc
        for path, status in (
            ("/history/index.html", 200), ("/history/../secret", 404), ("/history/%2e%2e/secret", 404),
            ("/history/link", 404), ("/trend.json", 200),
        ):  # fmt: skip
            response, connection = asked(address, path)
            text = response.read()
            assert response.status == status, path
            assert b"secret" not in text and "default-src 'none'" in response.headers["content-security-policy"]
            connection.close()
        assert asked(address, "/history/index.html", "POST")[0].status == 405
