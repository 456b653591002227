"""What a move copies at once, as server.properties bounds it (KIP-113)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from storage_node.move.future import FutureLog
from tests.support.nodes.node_harness import running, until


@pytest.mark.feature("113-59")
@pytest.mark.parametrize("key", ["replica.fetch.max.bytes", "replica.fetch.response.max.bytes"])
def test_no_chunk_is_larger_than_the_fetch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    sizes: list[int] = []
    write = FutureLog.write

    def noted(self: FutureLog, data: Any, walked: Any) -> Any:
        sizes.append(len(data))
        return write(self, data, walked)

    monkeypatch.setattr(FutureLog, "write", noted)
    with running(tmp_path, 2, {key: "100000"}) as harness:
        harness.create_topic("t")
        harness.produce("t", [b"x" * 50_000] * 20)
        target = harness.other_directory("t")
        admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
        admin.alter_replica_log_dirs({("t", 0, 1): target})
        until(lambda: harness.directory_of("t") == target)
        admin.close()
        assert len(harness.consume("t", 20)) == 20
    assert max(sizes) == 24 * 4096, "whole blocks"
    assert sum(sizes) >= 1_000_000
