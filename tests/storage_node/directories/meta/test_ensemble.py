"""What a start or a format makes of the directories that it finds (KIP-858), as a table and as properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.directories.errors import StartRefused
from storage_node.directories.meta.ensemble import EnsembleDecision, Found, State, decide
from storage_node.directories.meta.properties import UNASSIGNED, MetaProperties

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


def run(
    *found: Found, format: bool = False, forget: tuple[str, ...] = (), cluster: str | None = None
) -> EnsembleDecision:
    ids = draws()
    return decide(found, node_id=1, cluster_id=cluster, format=format, forget=forget, draw=lambda: next(ids))


def after(found: tuple[Found, ...], decided: EnsembleDecision, writes: int | None = None) -> tuple[Found, ...]:
    """Return the directories after the first `writes` writes of a plan."""
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


def test_start_lists_the_ids_in_the_order_of_log_dirs() -> None:
    swapped = IN_STEP[::-1]
    decided = run(*swapped)
    assert {path: written.directory_ids for path, written in decided.writes} == dict.fromkeys(
        ("/1", "/2", "/3"), (C, B, A)
    )
    assert run(*after(swapped, decided)).writes == ()


def test_missing_disk_keeps_its_place_among_the_ids() -> None:
    gone = Found("/1", "error", reason="it fails")
    assert run(gone, *IN_STEP[1:]).writes == ()
    assert run(gone, IN_STEP[2], IN_STEP[1]).directory_ids == (A, C, B)


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
def test_new_directory_is_formatted_while_all_known_ids_are_present(state: State) -> None:
    found = (*IN_STEP[:2], ok("/3", C, (A, B, C)), Found("/4", state))
    decided = run(*found)
    assert decided.formatted == ("/4",)
    assert decided.create == (("/4",) if state == "missing" else ())
    new = dict(decided.ids)["/4"]
    for f in after(found, decided):
        assert f.properties is not None and set(f.properties.directory_ids) == {A, B, C, new}


def test_missing_directory_is_offline_and_not_created() -> None:
    decided = run(ok("/1", A, (A, B)), Found("/2", "missing"))
    assert decided.create == () and decided.missing_ids == {B}
    assert decided.offline == (("/2", "the directory does not exist"),)


UNKNOWN = MetaProperties(0, None, 1)

REFUSED: list[tuple[str, tuple[Found, ...], tuple[str, ...]]] = [
    ("no directory at all", (), ("log.dirs is empty",)),
    ("not formatted", (Found("/1", "unformatted"),), ("/1: ", "no meta.properties", "rehome storage format", "mount")),
    ("metadata directory unformatted", (Found("/1", "unformatted"), ok("/2", B)), ("/1: the metadata", "format -t c1")),
    ("metadata directory missing", (Found("/1", "missing"), ok("/2", B)), ("/1: the metadata", "not exist", "mount")),
    ("an unmounted disk", (ok("/1", A, (A, B)), Found("/2", "unformatted")), ("/2", B, "/1/", "not mounted", "mount")),
    ("replicas but no file", (ok("/1", A), Found("/2", "unformatted", has_replicas=True)), ("/2", "holds replicas")),
    (
        "two clusters",
        (ok("/1", A), ok("/2", B, cluster_id="c2")),
        ("/2", "read c2 (/1/meta", "Expected c1", "log.dirs"),
    ),
    ("another node", (ok("/1", A), ok("/2", B, node_id=7)), ("/2", "id 7 doesn't match", "id 1 in", "is 1")),
    ("a copied disk", (ok("/1", A), ok("/2", A)), ("/1", "/2", A, "copy")),
    ("a reserved id", (ok("/1", UNASSIGNED),), ("/1", UNASSIGNED, "reserved")),
    ("a reserved id in the list", (ok("/1", A, (A, UNASSIGNED)),), (UNASSIGNED, "reserved")),
    ("no cluster anywhere", (Found("/1", "ok", UNKNOWN),), ("cluster.id",)),
]


@pytest.mark.conformance(126)
@pytest.mark.feature("858-06", "858-14")
@pytest.mark.parametrize(("found", "messages"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_start_is_refused_with_one_clear_sentence(found: tuple[Found, ...], messages: tuple[str, ...]) -> None:
    with pytest.raises(StartRefused) as refused:
        run(*found)
    sentence = str(refused.value)
    assert sentence.startswith("node 1 does not start: ") and "\n" not in sentence
    for words in messages:
        assert words in sentence


EIO = Found("/4", "error", reason="Input/output error")

MIXED: list[tuple[str, tuple[Found, ...], dict[str, str]]] = [
    (
        "none formatted",
        (Found("/1", "unformatted"), Found("/2", "missing"), EIO),
        {"/1": "the metadata directory (the first of log.dirs) is not formatted", "/2": "not exist", "/4": "Input"},
    ),
    (
        "another cluster, another node, an unmounted disk, a broken one",
        (ok("/1", A, (A, C)), ok("/2", B, cluster_id="c2"), ok("/3", D, node_id=7), Found("/5", "unformatted"), EIO),
        {
            "/2": "but read c2",
            "/3": "Stored node id 7",
            "/5": "may be a disk that is not mounted",
            "/4": "Input/output",
        },
    ),
    (
        "another cluster and node at once",
        (ok("/1", A), ok("/2", B, cluster_id="c2", node_id=7), Found("/3", "unformatted", has_replicas=True)),
        {"/2": "but read c2", "/3": "holds replicas"},
    ),
    ("all of another node", (ok("/1", A, node_id=7), ok("/2", B, node_id=7)), {"/1": "id 7", "/2": "id 7"}),
    (
        "three copies",
        (ok("/1", A), ok("/2", A), ok("/3", A)),
        {"/2": "as /1: one is a copy", "/3": "as /1: one is a copy"},
    ),
]


@pytest.mark.conformance(113, 126)
@pytest.mark.parametrize(("found", "messages"), [row[1:] for row in MIXED], ids=[row[0] for row in MIXED])
def test_refused_start_has_a_line_for_every_bad_directory(found: tuple[Found, ...], messages: dict[str, str]) -> None:
    with pytest.raises(StartRefused) as refused:
        run(*found)
    first, *lines = str(refused.value).split("\n")
    assert first == f"node 1 does not start: {len(messages)} of {len(found)} directories cannot be used as they are"
    assert {problem.path for problem in refused.value.problems} == messages.keys()
    for path, words in messages.items():
        (line, *more) = [line for line in lines if line.startswith(f"  {path}: ")]
        assert words in "".join([line, *more])
        assert all("; " in each for each in [line, *more]), "what to do next"


def test_foreign_directory_does_not_make_ids_known() -> None:
    with pytest.raises(StartRefused) as refused:
        run(ok("/1", A, (A,)), ok("/2", B, (B, D), cluster_id="c2"), Found("/3", "unformatted"))
    assert [problem.path for problem in refused.value.problems] == ["/2"]


def test_failed_disk_alone_does_not_refuse_the_start() -> None:
    assert run(ok("/1", A, (A,)), EIO).offline == (("/4", "Input/output error"),)
    assert run(EIO, ok("/1", A, (A,))).offline == (("/4", "Input/output error"),), "also the first of log.dirs"
    gone = run(Found("/1", "missing"), ok("/2", B, (A, B)))
    assert gone.offline == (("/1", "the directory does not exist"),) and gone.create == ()


@pytest.mark.feature("858-06")
@pytest.mark.parametrize("state", ["unformatted", "missing", "error"])
def test_metadata_directory_beside_log_dirs_must_be_formatted(state: State) -> None:
    found = (ok("/1", A, (A,)), Found("/m", state, reason="EIO"))
    with pytest.raises(StartRefused, match=r"/m: the metadata directory \(metadata\.log\.dir\)"):
        decide(found, node_id=1, metadata="/m")
    decided = decide((*found[:1], ok("/m", B, (B,))), node_id=1, metadata="/m")
    assert {path: set(written.directory_ids) for path, written in decided.writes} == {"/1": {A, B}, "/m": {A, B}}


@pytest.mark.conformance(129)
@pytest.mark.parametrize("one", ["ok", "unformatted", "missing", "error"])
@pytest.mark.parametrize("other", ["unformatted", "missing", "error"])
def test_directory_in_two_states_raises_value_error(one: State, other: State) -> None:
    first = ok("/1", A, (A, B)) if one == "ok" else Found("/1", one)
    with pytest.raises(ValueError, match="duplicate directories"):
        run(first, Found("/2", "missing"), Found("/1", other))


def test_configured_cluster_is_checked_where_it_is_given() -> None:
    with pytest.raises(StartRefused, match=r"Expected other, but read c1 \(the configuration"):
        run(*IN_STEP, cluster="other")


@pytest.mark.feature("858-02", "858-04")
def test_format_keeps_what_is_formatted() -> None:
    decided = run(ok("/1", A, (A,)), Found("/2", "unformatted"), Found("/3", "missing"), format=True, cluster=CLUSTER)
    assert decided.formatted == ("/2", "/3") and decided.create == ("/3",)
    assert dict(decided.ids)["/1"] == A


@pytest.mark.feature("858-03")
@pytest.mark.parametrize(
    "bad", [Found("/2", "error", reason="Input/output error"), Found("/2", "missing"), Found("/2", "unformatted")]
)
def test_format_needs_all_directories(bad: Found) -> None:
    with pytest.raises(StartRefused, match=r"not formatted: .*/2"):
        run(ok("/1", A, (A, B)), bad, format=True, cluster=CLUSTER)


@pytest.mark.conformance(133)
def test_fresh_format_is_refused_where_one_is_formatted() -> None:
    found = (Found("/1", "unformatted"), ok("/3", C), ok("/2", B))
    with pytest.raises(StartRefused) as refused:
        decide(found, node_id=1, cluster_id=CLUSTER, format=True, fresh=True)
    assert str(refused.value) == (
        "Log directory /2 is already formatted. Use --ignore-formatted to ignore this directory and format the others."
    )
    assert len(decide(found[:1], node_id=1, cluster_id=CLUSTER, format=True, fresh=True).writes) == 1


@pytest.mark.conformance(138)
def test_format_without_any_usable_directory() -> None:
    with pytest.raises(StartRefused, match="not formatted: No available log directories to format: /4: I/O error"):
        run(EIO, format=True, cluster=CLUSTER)


def test_version_1_is_written_and_taken_back() -> None:
    back = decide(IN_STEP, node_id=1, format=True, version=1)
    found = after(IN_STEP, back)
    for f in found:
        assert f.properties is not None
        assert (f.properties.version, set(f.properties.directory_ids)) == (1, {A, B, C})
    assert back.formatted == () and back.ids == run(*IN_STEP).ids
    again = run(*found)
    assert {written.version for _, written in again.writes} == {2} and again.ids == back.ids


def test_id_is_removed_only_by_the_operator() -> None:
    found = (ok("/1", A, (A, B)), Found("/2", "unformatted"))
    decided = run(*found, format=True, forget=(B,), cluster=CLUSTER)
    for f in after(found, decided):
        assert f.properties is not None and B not in f.properties.directory_ids
    with pytest.raises(StartRefused, match="which /1 has"):
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
def test_plan_after_a_crash_between_two_writes_completes_it(found: tuple[Found, ...], format: bool) -> None:
    try:
        decided = run(*found, format=format, cluster=CLUSTER)
    except StartRefused:
        return
    kept = {f.path: f.properties.directory_id for f in found if f.properties and f.properties.directory_id}
    for writes in range(len(decided.writes) + 1):
        between = after(found, decided, writes)
        listed = {id for f in between if f.properties for id in f.properties.directory_ids}
        present = {f.properties.directory_id for f in between if f.properties}
        # After any prefix of the writes, no id is listed as missing that was not missing before.
        assert listed - present <= decided.missing_ids
        again = run(*between, format=format, cluster=CLUSTER)
        assert len(dict(again.ids)) == len(dict(decided.ids))
        assert kept.items() <= dict(again.ids).items()
        assert run(*after(between, again), cluster=CLUSTER).writes == ()
