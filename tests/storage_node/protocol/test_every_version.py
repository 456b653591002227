"""Every API, in every version: the node responds to any request of kio's schemas in the request's version."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from storage_node.log.batches.batch import build_batch
from storage_node.wire.codec import _inner
from tests.support.nodes.node_harness import Harness, running
from tests.support.wire import Client, offered

#: The APIs that this module tests; those of the others are in their own modules.
KEYS = (0, 1, 2, 3, 17, 18, 19, 20, 21, 22, 23, 36, 37, 43, 45, 46, 60, 61, 75)
EXAMPLES = 6

#: Fields whose value decides how long a request takes, or what it creates.
SHORT = {"max_wait", "timeout", "num_partitions", "count", "client_software_name", "client_software_version"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with running(Path(tmp_path_factory.mktemp("versions")), dirs=2) as made:
        made.create_topic("t", 2)
        made.produce("t", [b"x"] * 3)
        yield made


def values_of(schema: type, topic_id: UUID, name: str = "") -> st.SearchStrategy[dict[str, Any]]:
    """Return values for an entity, by field name."""
    fields = dataclasses.fields(schema)  # type: ignore[arg-type]
    return st.fixed_dictionaries({field.name: _field(field, topic_id) for field in fields})


def _field(field: dataclasses.Field[Any], topic_id: UUID) -> st.SearchStrategy[Any]:
    inner, is_array = _inner(field.type)
    nullable = type(None) in typing.get_args(field.type)
    one: st.SearchStrategy[Any]
    if dataclasses.is_dataclass(inner):
        one = values_of(typing.cast(type, inner), topic_id)
    else:
        one = _primitive(field, topic_id, nullable)
    if is_array:
        one = st.lists(one, max_size=3)
    return st.none() | one if nullable and (is_array or dataclasses.is_dataclass(inner)) else one


def _primitive(field: dataclasses.Field[Any], topic_id: UUID, nullable: bool) -> st.SearchStrategy[Any]:
    kind, name = field.metadata["kafka_type"], field.name
    if name in ("client_software_name", "client_software_version"):
        return st.sampled_from(("kio", "1.0", "-", "a b"))
    text = st.sampled_from(("t", "t", "new", "", "no@name", "_" * 250))
    small = st.integers(-3, 5)
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "string": lambda: st.none() | text if nullable else text,
        "bool": st.booleans,
        "uuid": lambda: st.sampled_from((topic_id, UUID(int=7), None)),
        "records": lambda: st.sampled_from((build_batch([b"abc"]), b"no batch", b"", None)),
        "bytes": lambda: st.binary(max_size=9),
        "timedelta_i32": lambda: st.integers(0, 20).map(lambda ms: timedelta(milliseconds=ms)),
        "timedelta_i64": lambda: st.integers(0, 20).map(lambda ms: timedelta(milliseconds=ms)),
        "int64": lambda: small | st.integers(-(2**63), 2**63 - 1),
        "int32": lambda: small | (st.just(0) if name in SHORT else st.sampled_from((2**31 - 1, -(2**31)))),
        "int16": lambda: small | st.sampled_from((2**15 - 1, -(2**15))),
        "int8": lambda: st.integers(-128, 127),
    }
    return kinds[kind]()


@pytest.mark.parametrize("key", KEYS)
def test_node_responds_in_the_version_of_the_request(node: Harness, key: int) -> None:
    with contextlib.closing(Client(node)) as client:
        if client.topic_id("t") is None:
            node.create_topic("t", 2)  # deleted by an earlier request
        topic_id = client.topic_id("t")
    assert topic_id is not None

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        with contextlib.closing(Client(node)) as client:
            client.socket.settimeout(30)
            for version in offered(key):
                values = data.draw(values_of(load_request_schema(key, version), topic_id), label=f"version {version}")
                if key == 0 and values["acks"] == 0:
                    values["acks"] = -1  # with acks=0 there is no response
                client.ask(key, version, values)

    ask()
    assert all(directory.online for directory in node.node.dirs.directories)
