"""meta.properties: Kafka's versions 0 and 1 are read, KIP-858's version 2 is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.directories.errors import MalformedMetaProperties
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.properties import MetaProperties
from storage_node.errors import MetadataIOError

GOLDEN = Path(__file__).parents[3] / "golden" / "directories"
CLUSTER = "5MJQ_nGJQHGp6zHzbJCZhg"
IDS = ("e6umYSUsQyq7jUUzL9iXMQ", "b4d9ExdORgaQq38CyHwWTA", "P2aL9r4sSqqyt7bC0uierg")
VERSION_2 = MetaProperties(2, CLUSTER, 1, IDS[0], IDS)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("meta-v0.properties", MetaProperties(0, "ZookeeperCluster:1", 1)),
        ("meta-v1.properties", MetaProperties(1, CLUSTER, 1, IDS[0])),
        ("meta-v2.properties", VERSION_2),
    ],
)
def test_every_version_is_read(file: str, expected: MetaProperties) -> None:
    assert meta_properties.decode((GOLDEN / file).read_bytes()) == expected


def test_version_2_as_it_is_written(tmp_path: Path) -> None:
    meta_properties.write(tmp_path, VERSION_2)
    assert (tmp_path / "meta.properties").read_bytes() == (GOLDEN / "meta-v2.properties").read_bytes()
    assert meta_properties.read(tmp_path) == VERSION_2


def test_file_without_version_is_version_0() -> None:
    assert meta_properties.decode(b"broker.id=3\n") == MetaProperties(0, None, 3)


ids = st.sampled_from(IDS)


@pytest.mark.conformance(131)
@given(
    st.builds(
        MetaProperties,
        st.integers(0, 2),
        st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=30),
        st.integers(0, 2**31 - 1),
        ids,
        st.lists(ids, unique=True).map(tuple),
        st.dictionaries(st.text("abc.:= #ä", min_size=1, max_size=9), st.text(max_size=9), max_size=3).map(
            lambda others: tuple(sorted(others.items()))
        ),
    )
)
def test_what_is_written_is_read_with_foreign_keys(properties: MetaProperties) -> None:
    assert meta_properties.decode(meta_properties.encode(properties)) == properties


@pytest.mark.conformance(131)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# only a remark\n", "empty"),
        ("version=3\ncluster.id=c\nnode.id=1\n", "unknown version 3"),
        ("version=x\n", "version is not a number"),
        ("version=1\nnode.id=1\n", "cluster.id is missing"),
        ("version=1\ncluster.id=c\n", "node.id is missing"),
        ("version=2\ncluster.id=c\nnode.id=-1\n", "node.id is not a number"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=short\n", "not a directory id"),
        ("version=2\ncluster.id=c\nnode.id=1\ndirectory.ids=short\n", "not a directory id"),
        ("version=1\\u12\n", "malformed"),
    ],
)
def test_malformed_file_is_reported_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(MalformedMetaProperties, match=message):
        meta_properties.decode(text.encode("latin-1"), "/d1/meta.properties")


def test_no_file_is_none_and_an_unreadable_one_an_io_error(tmp_path: Path) -> None:
    assert meta_properties.read(tmp_path) is None
    (tmp_path / "meta.properties").mkdir()
    with pytest.raises(MetadataIOError) as failed:
        meta_properties.read(tmp_path)
    assert failed.value.directory == str(tmp_path)


@pytest.mark.conformance(110)
def test_reserved_ids() -> None:
    for id in (meta_properties.MIGRATING, meta_properties.UNASSIGNED, meta_properties.LOST):
        assert meta_properties.is_directory_id(id) and meta_properties.is_reserved(id)
    # The first half zero: 99 is the last reserved one, 100 the first that is not.
    assert meta_properties.is_reserved("AAAAAAAAAAAAAAAAAAAAYw")
    assert not meta_properties.is_reserved("AAAAAAAAAAAAAAAAAAAAZA")


@pytest.mark.conformance(128)
def test_new_id_is_never_unsafe_reserved_or_used() -> None:
    draws = iter(["-AAAAAAAAAAAAAAAAAAAAA", meta_properties.LOST, IDS[0], IDS[1]])
    assert meta_properties.fresh_directory_id({IDS[0]}, lambda: next(draws)) == IDS[1]
    assert meta_properties.is_directory_id(meta_properties.random_directory_id())
