"""Every API and version in the table, with values from its schema and with damage done to them, against a live node.

The node responds to a valid request according to the response's schema; to a damaged one it responds, or it closes the
connection. No request stops the node, delays another connection, or makes the node allocate memory for a false length.
"""

from __future__ import annotations

import contextlib
import gc
import random
import resource
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from storage_node.log.batches.batch import build_batch
from storage_node.protocol.listener import PATIENT
from storage_node.protocol.network import loop_probe
from storage_node.wire.codec import MAX_ELEMENTS, MalformedRequest, _build, read_request
from storage_node.wire.primitives import varint
from storage_node.wire.table import APIS, Api
from tests.support.entities import LIES, bomb, damaged, requests
from tests.support.nodes.node_harness import Harness, raw_connection, running
from tests.support.scale import FULL, scaled, tally
from tests.support.wire import Client, encode_request, receive_frame

#: The longest wait of another connection, on a loaded machine.
PATIENCE = 2.0
#: The same while this process is idle: the machine may pause, but nothing may hang.
STANDS_STILL = 30.0
ANSWER = 20.0
#: CPU seconds of the longest callback of the listener's loop.
STALL = 0.020
#: Bytes by which the process may grow at most, at any moment.
GROWTH = 250_000_000
PING = 7_777_777

BY_NAME = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "database": None,
}


class Target:
    """A node that receives strange requests, and a connection that checks whether it still serves."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.highest = _highest()
        harness.create_topic("sentinel")
        harness.produce("sentinel", [b"before"])
        self.sentinel = Client(harness)

    def renew(self) -> None:
        """Create the topics that requests may use again, if one of the requests has deleted them."""
        # Collected by this thread, not by the loop's, whose callbacks the test times.
        gc.collect()
        for name in ("t", "u"):
            if name not in self.harness.node.metadata.image.topics:
                self.harness.create_topic(name, 2)

    def check(self) -> None:
        """Assert that the node serves another connection soon, without a long callback or a large allocation."""
        began, worked = time.monotonic(), time.process_time()
        assert len(self.sentinel.ask(18, 0).api_keys) == len(APIS)
        waited, worked = time.monotonic() - began, time.process_time() - worked
        assert waited < STANDS_STILL and min(waited, worked) < PATIENCE, "another connection had to wait"
        watched = self.harness.node.listener.probe
        assert watched is not None
        seconds, what = watched.take()["cpu"]
        assert seconds <= STALL, f"a callback blocked the loop: {what}: {seconds * 1000:.0f} ms"
        assert _highest() - self.highest < GROWTH

    def ask(self, frame: bytes, seconds: float) -> list[bytes] | None:
        """Send a frame and a second request; returns the responses before the second's, None if the node closed."""
        ping = struct.pack(">ihhih", 10, 18, 0, PING, -1)
        found: list[bytes] = []
        with raw_connection(self.harness, seconds) as connection:
            try:
                connection.sendall(frame + ping)
                while True:
                    answer = receive_frame(connection)
                    if struct.unpack_from(">i", answer) == (PING,):
                        return found
                    found.append(answer)
            except TimeoutError:
                raise
            except OSError:
                return None


def _highest() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    # The full sets do not use the sentinel for many minutes: the node must not close it as idle.
    extra = {"group.initial.rebalance.delay.ms": "0", "connections.max.idle.ms": str(24 * 3600 * 1000)}
    folder = tmp_path_factory.mktemp("fuzzed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(loop_probe.ENVIRONMENT, str(folder / "probe.json"))
        gc.disable()
        try:
            with running(folder, dirs=2, extra=extra) as harness:
                yield from fuzzed(harness)
        finally:
            gc.enable()


def fuzzed(harness: Harness) -> Iterator[Target]:
    """Yield a target, and check at the end that it is unharmed."""
    made = Target(harness)
    yield made
    made.sentinel.close()
    assert all(directory.online for directory in harness.node.dirs.directories)
    harness.produce("sentinel", [b"after"])
    assert [message.value() for message in harness.consume("sentinel", 2)] == [b"before", b"after"]
    harness.restart()
    assert [message.value() for message in harness.consume("sentinel", 2)] == [b"before", b"after"]


def parsed(api: Api, version: int, answer: bytes) -> Any:
    """Decode a response by its schema, to its last byte."""
    schema = load_response_schema(api.key, version)
    position = 4 + (1 if schema.__flexible__ and api.name != "api_versions" else 0)
    entity, size = entity_reader(schema)(answer, position)
    assert position + size == len(answer), "bytes after the response"
    return entity


@pytest.mark.timing
@BY_NAME
def test_responses_to_valid_requests_fit_the_schema(target: Target, api: Api) -> None:
    target.renew()
    count = 0

    @settings(max_examples=scaled(12, 400), **SETTINGS)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        nonlocal count
        version = data.draw(st.integers(api.min_version, api.max_version))
        values = data.draw(requests(api.key, version))
        frame = encode_request(api.key, version, values, 1)
        try:
            answers = target.ask(frame, 0.5 if api.name in PATIENT else ANSWER)
        except TimeoutError:
            assert api.name in PATIENT, "no response"
        else:
            silent = api.name == "produce" and values.get("acks") == 0
            # (The node reports the error of a request without a response by closing the connection.)
            assert answers is not None or silent, "the connection was closed"
            assert answers is None or len(answers) == (0 if silent else 1)
            for answer in answers or ():
                parsed(api, version, answer)
        target.check()
        count += 1

    with tally("whole requests of every API and version, with strange values") as counted:
        run()
        counted.count = count


@pytest.mark.timing
@BY_NAME
def test_damaged_requests_get_a_response_or_end_their_connection(target: Target, api: Api) -> None:
    target.renew()
    count = 0

    @settings(max_examples=scaled(15, 600), **SETTINGS)
    @given(st.data(), st.integers(0, 2**32), st.integers(1, 4))
    def run(data: st.DataObject, seed: int, times: int) -> None:
        nonlocal count
        rng = random.Random(seed)
        version = data.draw(st.integers(api.min_version, api.max_version))
        frame = encode_request(api.key, version, data.draw(requests(api.key, version)), 1)
        body = damaged(rng, frame[12:], times)
        frame = frame[4:12] + body
        length, lies = len(frame), rng.random() < 0.1
        if lies:
            length = rng.choice([0, -1, 2**31 - 1, len(frame) - 1, len(frame) + 3, len(frame) + 70_000, 7])
        with contextlib.suppress(TimeoutError):
            target.ask(struct.pack(">i", length) + frame, 0.05 if lies else 0.5)
        target.check()
        count += 1

    with tally("damaged requests of every API") as counted:
        run()
        counted.count = count


@BY_NAME
def test_schema_reads_what_it_wrote_and_no_damage_of_it_takes_memory(api: Api) -> None:
    tracemalloc.start()
    highest, rng, count = _highest(), random.Random(3), 0
    try:

        @settings(max_examples=scaled(10, 500), **SETTINGS)
        @given(st.data())
        def run(data: st.DataObject) -> None:
            nonlocal count
            version = data.draw(st.integers(api.min_version, api.max_version))
            schema = load_request_schema(api.key, version)
            values = data.draw(requests(api.key, version))
            frame = encode_request(api.key, version, values, 1)
            start = 4 + 8 + 2 + 4 + (1 if schema.__flexible__ else 0)
            assert read_request(api.key, version, frame, start) == _build(schema)(values)
            body = frame[start:]
            for _ in range(20):
                one = damaged(rng, body, rng.randrange(1, 4))
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(MalformedRequest):
                    read_request(api.key, version, one, 0)
                assert tracemalloc.get_traced_memory()[1] - before < 1_000_000 + 300 * len(one)
                count += 1

        with tally("damaged bodies read by their schema") as counted:
            run()
            counted.count = count
    finally:
        tracemalloc.stop()
    assert _highest() - highest < GROWTH


@BY_NAME
def test_false_lengths_in_a_request_are_decoded_or_rejected(api: Api) -> None:
    """Every position of a request of every version, overwritten with each false length, is decoded or rejected."""
    highest, count = _highest(), 0
    with tally("lengths that lie, read by their schema") as counted:
        for version in range(api.min_version, api.max_version + 1):
            schema = load_request_schema(api.key, version)
            frame = encode_request(api.key, version, full(schema), 1)
            body = frame[18 + bool(schema.__flexible__) :]
            read_request(api.key, version, body, 0)
            for at in range(0, len(body), scaled(3, 1)):
                for lie in LIES:
                    with contextlib.suppress(MalformedRequest):
                        read_request(api.key, version, body[:at] + lie + body[at + len(lie) :], 0)
                    count += 1
        counted.count = count
    assert _highest() - highest < GROWTH


def full(schema: Any) -> dict[str, Any]:
    """Return values with one element in every array."""
    import dataclasses

    from storage_node.wire.codec import _inner
    from tests.support.entities import _least

    made: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, is_array = _inner(field.type)
        if dataclasses.is_dataclass(inner):
            made[field.name] = [full(inner)] if is_array else full(inner)
        elif is_array:
            made[field.name] = [{"string": "t", "uuid": None}.get(field.metadata["kafka_type"], 0)]
        else:
            made[field.name] = "t" if field.metadata["kafka_type"] == "string" else _least(field)
    return made


@pytest.mark.timing
@BY_NAME
def test_same_topic_many_times_in_one_request(target: Target, api: Api) -> None:
    """Every array of every version has the same element fifty times; the response fits the schema."""
    target.renew()
    for version in range(api.min_version, api.max_version + 1):
        values = repeated(full(load_request_schema(api.key, version)), 50 if version == api.max_version else 2)
        if api.name == "produce":
            values["acks"] = 1  # with acks=0 there is no response
        try:
            answers = target.ask(encode_request(api.key, version, values, 1), 0.5 if api.name in PATIENT else ANSWER)
        except TimeoutError:
            assert api.name in PATIENT
        else:
            assert answers is not None, "the connection was closed"
            for answer in answers:
                parsed(api, version, answer)
    target.check()


def repeated(values: dict[str, Any], times: int, depth: int = 0) -> dict[str, Any]:
    """Return the values with the elements of every array `times` times, of inner arrays twice."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            items = [repeated(item, times, depth + 1) if isinstance(item, dict) else item for item in value]
            made[name] = items * (2 if depth else times)
        else:
            made[name] = value
    return made


def with_many(api: Api, count: int) -> bytes | None:
    """Return a request of the newest version with `count` elements with inner arrays, None if the API has none."""
    version, flexible = api.max_version, bool(load_request_schema(api.key, api.max_version).__flexible__)
    values = {**full(load_request_schema(api.key, version)), **({"acks": 1} if api.name == "produce" else {})}
    for name, value in values.items():  # noqa: B007
        if isinstance(value, list) and any(isinstance(inner, list) for inner in getattr(value[0], "values", list)()):
            break
    else:
        return None
    # A request with two elements differs from one with one in the count, and in a second element after the first.
    one, two = (encode_request(api.key, version, {**values, name: value * times}, 1)[4:] for times in (1, 2))
    at = next(place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    end = at + 1 + len(two) - len(one)
    number = varint(count + 1) if flexible else struct.pack(">i", count)
    head = one[:at] if flexible else one[: at - 3]
    frame = head + number + one[at + 1 : end] * count + one[end:]
    return struct.pack(">i", len(frame)) + frame


#: APIs with arrays in arrays: requests of the others cannot hold so many elements.
WITH_MANY = [api for api in APIS.values() if with_many(api, 1) is not None]


@pytest.mark.timing
@pytest.mark.parametrize("api", WITH_MANY, ids=lambda api: api.name)
def test_requests_with_too_many_elements_end_the_connection(target: Target, api: Api) -> None:
    frame = with_many(api, MAX_ELEMENTS // 2 + 1)
    assert frame is not None
    target.renew()
    began = time.monotonic()
    assert target.ask(frame, ANSWER) is None, "the node closed the connection"
    assert time.monotonic() - began < 10
    target.check()


LARGE = [api for api in WITH_MANY if FULL or api.name in ("list_offsets", "delete_records")]


@pytest.mark.timing
@pytest.mark.parametrize("api", LARGE, ids=lambda api: api.name)
def test_request_with_very_many_elements_delays_no_other_client(target: Target, api: Api) -> None:
    frame = with_many(api, 19_000)
    assert frame is not None
    target.renew()
    with raw_connection(target.harness, 60) as connection:
        connection.sendall(frame)
        connection.settimeout(0)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            target.check()
            with contextlib.suppress(BlockingIOError):
                assert connection.recv(1), "the node responds"
                break
        else:
            raise AssertionError("no response")


@pytest.mark.timing
def test_flood_of_tagged_fields(target: Target) -> None:
    for api in APIS.values():
        version = api.max_version
        if version < api.flexible:
            continue
        head = struct.pack(">hhihs", api.key, version, 1, 1, b"x")
        for tags in (b"\xff\xff\x7f" + b"\0\0" * 2_000_000, b"\x01\x01\xff\xff\xff\xff\x07", b"\x02\0\0\0\0" * 1000):
            frame = head + tags
            with contextlib.suppress(TimeoutError):
                target.ask(struct.pack(">i", len(frame)) + frame, 0.5)
        target.check()


@pytest.mark.timing
def test_compression_bombs_are_appended_unchanged_or_rejected(target: Target) -> None:
    target.renew()
    large = bomb(400_000_000)
    assert len(large) < 1_000_000
    target.check()
    client = Client(target.harness)
    for configs in ({}, {"message.timestamp.type": "LogAppendTime"}, {"compression.type": "zstd"}):
        name = f"bombs-{len(configs)}-{next(iter(configs), '').replace('.', '-')}"
        with contextlib.suppress(Exception):
            target.harness.create_topic(name, 1, configs)
        client.produce(name, 0, large)
        target.check()
    client.send(2, 1, {"topics": [{"name": "bombs-0-", "partitions": [{"partition_index": 0, "timestamp": 1}]}]})
    client.receive()
    client.send(2, 7, {"topics": [{"name": "bombs-0-", "partitions": [{"partition_index": 0, "timestamp": -3}]}]})
    client.receive()
    client.close()
    target.check()


@pytest.mark.timing
def test_no_name_leaves_the_log_directories(target: Target) -> None:
    roots = [Path(path) for path in target.harness.paths]
    above = sorted(path.name for path in roots[0].parent.parent.iterdir())
    names = ["../x", "..", ".", "a/b", "/tmp/x", "x\0y", "\0", "a" * 250, "", "ü", "t\n", "..%2fx", "t\\u"]
    client = Client(target.harness)
    answer = client.ask(19, 5, {"topics": [{"name": n, "num_partitions": 1, "replication_factor": 1} for n in names]})
    assert [int(topic.error_code) for topic in answer.topics] == [17] * len(names)
    for name in names:
        assert client.produce(name, 0, build_batch([b"x"])).error == 3
        assert client.fetch(name, 0, 0)[0].error == 3
    paths = ["../x", "/", "", "relative", target.harness.paths[0] + "/../other", "\0"]
    dirs = [{"path": path, "topics": [{"name": "t", "partitions": [0]}]} for path in paths]
    for one in dirs:
        rows = client.ask(34, 2, {"dirs": [one]}).results
        assert rows[0].partitions[0].error_code, one
    client.close()
    assert sorted(path.name for path in roots[0].parent.parent.iterdir()) == above
    assert not [path for root in roots for path in root.iterdir() if path.is_dir() and "x" in path.name]


@pytest.mark.timing
def test_frames_of_no_length_and_half_closed_connections(target: Target) -> None:
    for data in (b"\0\0\0\0", b"\0\0\0\0" * 1000, b"\0", b"\0\0\0", b""):
        with raw_connection(target.harness) as connection:
            connection.sendall(data)
            if len(data) < 4:
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    target.check()
