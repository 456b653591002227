"""What a start or a format makes of the directories it finds (KIP-858), as a table and as properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.directories.errors import StartRefused
from storage_node.directories.meta_plan import Found, Plan, State, plan
from storage_node.directories.meta_properties import UNASSIGNED, MetaProperties

CLUSTER = "c1"
A, B, C, D = (f"{letter}-directory-id-{letter * 7}"[:22].ljust(22, "x") for letter in "ABCD")


def draws() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"new{number:04d}".ljust(22, "x")


def ok(path: str, id: str | None, ids: tuple[str, ...] = (), version: int = 2, **others: object) -> Found:
    properties = MetaProperties(version, CLUSTER, 1, id, ids)
    return Found(path, "ok", replace(properties, **others))  # type: ignore[arg-type]


def run(*found: Found, format: bool = False, forget: tuple[str, ...] = (), cluster: str | None = None) -> Plan:
    ids = draws()
    return plan(found, node_id=1, cluster_id=cluster, format=format, forget=forget, draw=lambda: next(ids))


def after(found: tuple[Found, ...], decided: Plan, writes: int | None = None) -> tuple[Found, ...]:
    """The directories after the first `writes` writes of a plan."""
    state = {f.path: f for f in found}
    for path in decided.create:
        state[path] = Found(path, "unformatted")
    for path, properties in decided.writes[:writes]:
        state[path] = Found(path, "ok", properties)
    return tuple(state[f.path] for f in found)


IN_STEP = (ok("/1", A, (A, B, C)), ok("/2", B, (A, B, C)), ok("/3", C, (A, B, C)))


@pytest.mark.conformance(130)
def test_directories_in_step_are_not_written() -> None:
    decided = run(*IN_STEP)
    assert decided.writes == () and decided.offline == () and decided.missing_ids == frozenset()
    assert dict(decided.ids) == {"/1": A, "/2": B, "/3": C}


def test_another_order_of_log_dirs_is_no_reason_to_write() -> None:
    assert run(*IN_STEP[::-1]).writes == ()


@pytest.mark.feature("858-01", "858-05", "858-07")
@pytest.mark.parametrize(
    "found",
    [
        (Found("/1", "ok", MetaProperties(0, None, 1)), Found("/2", "ok", MetaProperties(0, CLUSTER, 1))),
        (ok("/1", None, version=1), ok("/2", None, version=1)),
        (ok("/1", A, version=1), ok("/2", None, version=1)),
        (ok("/1", A, version=1), ok("/2", B, version=1)),
        (ok("/1", A, (A,)), ok("/2", None)),
    ],
)
def test_older_files_become_version_2_with_all_ids(found: tuple[Found, ...]) -> None:
    decided = run(*found)
    for f in after(found, decided):
        assert f.properties is not None and f.properties.version == 2
        assert f.properties.directory_id == dict(decided.ids)[f.path]
        assert set(f.properties.directory_ids) == set(dict(decided.ids).values())
    assert len(set(dict(decided.ids).values())) == 2


def test_foreign_keys_survive_the_upgrade() -> None:
    found = ok("/1", A, version=1, others=(("my.key", "x"),))
    ((_, written),) = run(found).writes
    assert written.others == (("my.key", "x"),)


@pytest.mark.feature("858-08")
def test_ids_that_no_directory_has_are_known_as_missing() -> None:
    decided = run(ok("/1", A, (A, B)), Found("/2", "error", reason="Input/output error"))
    assert decided.missing_ids == {B}
    assert decided.offline == (("/2", "Input/output error"),)
    assert set(decided.directory_ids) == {A, B}


@pytest.mark.conformance(130)
def test_one_file_that_lists_an_id_is_enough() -> None:
    decided = run(ok("/1", A, (A, B)), ok("/2", B, (A, B, C)))
    assert decided.missing_ids == {C}
    assert [path for path, _ in decided.writes] == ["/1"]


@pytest.mark.feature("858-11")
@pytest.mark.parametrize("state", ["unformatted", "missing"])
def test_a_new_directory_is_formatted_while_all_known_ids_are_present(state: State) -> None:
    found = (*IN_STEP[:2], ok("/3", C, (A, B, C)), Found("/4", state))
    decided = run(*found)
    assert decided.formatted == ("/4",)
    assert decided.create == (("/4",) if state == "missing" else ())
    new = dict(decided.ids)["/4"]
    for f in after(found, decided):
        assert f.properties is not None and set(f.properties.directory_ids) == {A, B, C, new}


def test_a_directory_that_is_gone_is_offline_and_not_made_anew() -> None:
    decided = run(ok("/1", A, (A, B)), Found("/2", "missing"))
    assert decided.create == () and decided.missing_ids == {B}
    assert decided.offline == (("/2", "there is no such directory"),)


REFUSED: list[tuple[str, tuple[Found, ...], tuple[str, ...]]] = [
    ("no directory at all", (), ("log.dirs names no directory",)),
    ("none formatted", (Found("/1", "unformatted"), Found("/2", "unformatted")), ("/1", "/2", "format them first")),
    ("none readable", (Found("/1", "error", reason="EIO"), Found("/2", "missing")), ("readable", "EIO")),
    ("metadata directory unformatted", (Found("/1", "unformatted"), ok("/2", B)), ("metadata directory /1", "has no")),
    ("metadata directory missing", (Found("/1", "missing"), ok("/2", B)), ("metadata directory /1", "not exist")),
    ("metadata directory in error", (Found("/1", "error", reason="EIO"), ok("/2", B)), ("directory /1", "EIO")),
    ("an unmounted disk", (ok("/1", A, (A, B)), Found("/2", "unformatted")), ("/2", B, "/1/", "not mounted", "mount")),
    ("replicas but no file", (ok("/1", A), Found("/2", "unformatted", has_replicas=True)), ("/2", "holds replicas")),
    ("two clusters", (ok("/1", A), ok("/2", B, cluster_id="c2")), ("/2", "c2", "/1", "c1", "log.dirs")),
    ("another node", (ok("/1", A), ok("/2", B, node_id=7)), ("/2", "node.id 7", "says 1")),
    ("a copied disk", (ok("/1", A), ok("/2", A)), ("/1", "/2", A, "copy")),
    ("a reserved id", (ok("/1", UNASSIGNED),), ("/1", UNASSIGNED, "reserved")),
    ("a reserved id in the list", (ok("/1", A, (A, UNASSIGNED)),), (UNASSIGNED, "reserved")),
    ("no cluster anywhere", (Found("/1", "ok", MetaProperties(0, None, 1)),), ("cluster.id",)),
]


@pytest.mark.conformance(126)
@pytest.mark.feature("858-06")
@pytest.mark.parametrize(("found", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_start_is_refused_with_one_clear_sentence(found: tuple[Found, ...], says: tuple[str, ...]) -> None:
    with pytest.raises(StartRefused) as refused:
        run(*found)
    sentence = str(refused.value)
    assert sentence.startswith("node 1 does not start: ") and "\n" not in sentence
    for words in says:
        assert words in sentence


def test_the_configured_cluster_is_checked_where_it_is_given() -> None:
    with pytest.raises(StartRefused, match=r"c1, but the configuration says other"):
        run(*IN_STEP, cluster="other")


@pytest.mark.feature("858-02", "858-04")
def test_a_format_keeps_what_is_formatted() -> None:
    decided = run(ok("/1", A, (A,)), Found("/2", "unformatted"), Found("/3", "missing"), format=True, cluster=CLUSTER)
    assert decided.formatted == ("/2", "/3") and decided.create == ("/3",)
    assert dict(decided.ids)["/1"] == A


@pytest.mark.feature("858-03")
@pytest.mark.parametrize(
    "bad", [Found("/2", "error", reason="Input/output error"), Found("/2", "missing"), Found("/2", "unformatted")]
)
def test_a_format_needs_all_directories(bad: Found) -> None:
    with pytest.raises(StartRefused, match=r"not formatted: .*/2"):
        run(ok("/1", A, (A, B)), bad, format=True, cluster=CLUSTER)


def test_an_id_leaves_by_the_operators_word_only() -> None:
    found = (ok("/1", A, (A, B)), Found("/2", "unformatted"))
    decided = run(*found, format=True, forget=(B,), cluster=CLUSTER)
    for f in after(found, decided):
        assert f.properties is not None and B not in f.properties.directory_ids
    with pytest.raises(StartRefused, match="/1 has it"):
        run(*found, format=True, forget=(A,), cluster=CLUSTER)


any_found = st.lists(st.sampled_from(["ok-1", "ok-2", "unformatted", "missing", "error"]), min_size=1, max_size=4).map(
    lambda kinds: tuple(
        ok(f"/{i}", (A, B, C, D)[i], (A, B, C, D)[: i + 1], version=2)
        if kind == "ok-2"
        else ok(f"/{i}", None, version=1)
        if kind == "ok-1"
        else Found(f"/{i}", kind)  # type: ignore[arg-type]
        for i, kind in enumerate(kinds)
    )
)


@given(any_found, st.booleans())
def test_a_crash_between_two_writes_is_healed_by_doing_it_again(found: tuple[Found, ...], format: bool) -> None:
    try:
        decided = run(*found, format=format, cluster=CLUSTER)
    except StartRefused:
        return
    kept = {f.path: f.properties.directory_id for f in found if f.properties and f.properties.directory_id}
    for writes in range(len(decided.writes) + 1):
        between = after(found, decided, writes)
        listed = {id for f in between if f.properties for id in f.properties.directory_ids}
        present = {f.properties.directory_id for f in between if f.properties}
        # Whatever the moment, nothing is listed as missing that was not missing before.
        assert listed - present <= decided.missing_ids
        again = run(*between, format=format, cluster=CLUSTER)
        assert len(dict(again.ids)) == len(dict(decided.ids))
        assert kept.items() <= dict(again.ids).items()
        assert run(*after(between, again), cluster=CLUSTER).writes == ()
