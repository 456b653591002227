"""`python -m ops.dashboards.site OUT_DIR [--moves N] [--seed N] [--serve PORT]`: the site of the seeded example."""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
from collections.abc import Sequence
from pathlib import Path

from ops.dashboards.site.example import SEED, example
from ops.dashboards.site.write import write_site


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the site, serve it on the loopback if that is requested, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ops.dashboards.site", description=__doc__)
    parser.add_argument("out_dir", type=Path, help="folder of the site")
    parser.add_argument("--moves", type=int, default=4_000, help="moves of the example")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the example")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the folder on the loopback until Ctrl-C")
    chosen = parser.parse_args(arguments)
    if chosen.moves < 1:
        parser.error(f"--moves {chosen.moves} must be at least 1")
    try:
        page = write_site(example(chosen.moves, chosen.seed), chosen.out_dir)
    except OSError as error:
        print(f"rehome: cannot write the site: {error}", file=sys.stderr)
        return 1
    print(f"site: {page.absolute().as_uri()}")
    return 0 if chosen.serve is None else serve(chosen.out_dir, chosen.serve)


def serve(folder: Path, port: int) -> int:
    """Serve a folder on the loopback until Ctrl-C; return the exit code."""
    handler = functools.partial(_Quiet, directory=str(folder))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        print(f"rehome: cannot listen on 127.0.0.1:{port} ({error.strerror}): use another port", file=sys.stderr)
        return 1
    with server:
        print(f"served: http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs none of them."""

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
