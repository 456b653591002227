"""Nothing that is sent to a run fails its workflow task: neither at once nor later, by what it left behind.

The handlers are found in the workflows' definitions, so that a new one is tried as well. Each gets every payload of
tests/workflows/nasty.py in every state of its run; then all queries get responses, nodes and timers go on, and the run
takes a cancel.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob

from storage_node.model import command_rows
from storage_node.model.packing import pack, unpack
from tests.support.runs.hand_activations import Driven, TaskFailed, completed, plain, rejections, signals_in
from tests.support.scale import scaled, tally
from tests.workflows import nasty
from tests.workflows.driven import (
    ALL,
    COMMANDS,
    EXAMPLES,
    MOVES,
    PARAMETERS,
    PLANNED,
    RUN,
    STATES,
    WELL,
    asking,
    catching_up,
    collecting,
    continued,
    copying,
    holding,
    is_done,
    serving,
)
from tests.workflows.fakes import FakeMember
from workflows import move_replica
from workflows.cluster import Cluster
from workflows.directory_failure import DirectoryFailure
from workflows.model import calls
from workflows.model.metadata import commands, image, throttle_leases
from workflows.model.metadata.state import ClusterState
from workflows.model.throttles import MOVE_RATE
from workflows.move_replica import MoveReplica
from workflows.node_lease import NodeLease

FINE = {**WELL, **PLANNED}
TOGETHER = 40  # so many messages in one activation
STRIDE = scaled(5, 1)  # of what is nearly right every so many; what is plainly wrong is always tried


def _definition(kind: type) -> Any:
    return workflow._Definition.must_from_class(kind)


def _handlers() -> Iterator[tuple[type, str, str]]:
    for kind in ALL:
        found = _definition(kind)
        for sort, table in (("signal", found.signals), ("update", found.updates), ("query", found.queries)):
            yield from ((kind, sort, name) for name in sorted(name for name in table if name))


HANDLERS = list(_handlers())
TRIED = [
    pytest.param(kind, state, sort, name, id=f"{kind.__name__}-{state.__name__}-{name}")
    for kind, sort, name in HANDLERS
    for state in STATES[kind]
]


def _lists(name: str, example: Any) -> list[tuple[Payload, ...]]:
    given = list(nasty.arguments(example))
    surface = len(list(nasty.arguments()))
    offset = sum(name.encode()) % STRIDE
    return [*given[:surface], *given[surface + offset :: STRIDE]]


def _goes_on(it: Driven, kind: type) -> None:
    """Queries, nodes, timers and a cancel."""
    for _ in range(8):
        if it.ended is None:
            it.resolve(FINE, timers=True)
        for query in _definition(kind).queries:
            it.query(query)
    if it.ended is None:
        it.send(it.cancel())
        it.resolve(FINE)


def test_every_handler_has_an_example_in_every_state() -> None:
    wanted = {f"{kind.__name__}.{name}" for kind, sort, name in HANDLERS if sort != "query"}
    assert wanted == set(EXAMPLES), "tests/workflows/driven.py has an example for each handler"
    assert set(STATES) == set(PARAMETERS) == set(ALL), "tests/workflows/driven.py has the states of each workflow"
    assert all(STATES[kind] for kind, _, _ in HANDLERS)


@pytest.fixture(autouse=True)
def _no_collection_in_a_recursion() -> Iterator[None]:
    """Payloads nested too deep reach the limit of recursion: a collection there fails in the finalizers of others."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("kind", "state", "sort", "name"), TRIED)
def test_no_payload_fails_a_workflow_task(
    kind: type, state: Callable[[], Driven], sort: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    make = {"signal": Driven.signal, "update": Driven.update}.get(sort)
    example = EXAMPLES.get(f"{kind.__name__}.{name}")
    it, known = state(), {query for query in _definition(kind).queries}
    with tally("messages that no run expects") as counted:
        given = _lists(name, example)
        if make is None:
            for payloads in given:
                _tolerant(it, name, payloads)
                counted.count += 1
            return
        for at in range(0, len(given), TOGETHER):
            group = given[at : at + TOGETHER]
            try:
                it.send(*(make(name, *payloads) for payloads in group))
                for query in known:
                    it.query(query)
                it.resolve({})
            except (TaskFailed, AssertionError):
                _blame(state, make, name, group, known)
                raise
            if it.ended is not None:
                _goes_on(it, kind)
                it = state()
            counted.count += len(group)
    _goes_on(it, kind)


def _tolerant(it: Driven, name: str, payloads: tuple[Payload, ...]) -> None:
    """A query with arguments may fail; the task does not."""
    try:
        it.query(name, *payloads)
    except TaskFailed:
        raise
    except AssertionError:
        return


def _blame(
    state: Callable[[], Driven], make: Any, name: str, group: list[tuple[Payload, ...]], queries: set[str]
) -> None:
    """Name the messages that fail alone."""
    guilty: list[str] = []
    for payloads in group:
        it = state()
        try:
            it.send(make(name, *payloads))
            for query in queries:
                it.query(query)
            it.resolve({})
        except (TaskFailed, AssertionError) as failed:
            sent = [f"{each.metadata.get('encoding')!r} {each.data[:120]!r}" for each in payloads]
            guilty.append(f"{name}({', '.join(sent)}): {str(failed)[:200]}")
    if guilty:
        pytest.fail(f"{len(guilty)} of {len(group)} messages fail a task, as\n" + "\n".join(guilty[:8]))


def test_every_command_has_an_example() -> None:
    assert {each["do"] for each in COMMANDS} == command_rows.NAMES | set(commands.OF_RUNS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command["do"])
def test_no_command_fails_a_workflow_task(command: Mapping[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """In a batch of a node that may submit, a command is carried out or rejected, and its result can be sent."""
    caplog.set_level(logging.CRITICAL)
    wrong = [*nasty.VALUES, *list(nasty.mutated(command))[sum(command["do"].encode()) % STRIDE :: STRIDE]]
    node = FakeMember(1)
    with tally("commands that no controller expects") as counted:
        for at in range(0, len(wrong), TOGETHER):
            it = serving()
            for group in (wrong[at : at + TOGETHER], COMMANDS):
                try:
                    it.send(it.update("submit", plain(node.batch(*group) | {"number": at + 2 + (group is COMMANDS)})))
                    it.query("state")
                    it.resolve({**WELL, calls.PROBE_NODE: lambda call: {"incarnation": "", "reason": "gone"}})
                    it = continued(it)
                except (TaskFailed, AssertionError) as failed:
                    pytest.fail(f"{_first_guilty(node, group)}: {failed}")
                counted.count += len(group)


def _first_guilty(node: FakeMember, group: Sequence[Any]) -> str:
    for each in group:
        it = serving()
        try:
            it.send(it.update("submit", plain(node.batch(each) | {"number": 2})))
            it.query("state")
            continued(it)
        except (TaskFailed, AssertionError):
            return json.dumps(each)[:2000]
    return "all of them together"


def test_no_image_fails_a_workflow_task(caplog: pytest.LogCaptureFixture) -> None:
    """A node's disks may hold anything: the image that it registers with is taken or refused."""
    caplog.set_level(logging.CRITICAL)
    it = serving()
    content = unpack(image.whole(ClusterState.of(it.query("state")))[0])
    node = FakeMember(1)
    texts = [pack(content), "x", "eJw=", pack([]), pack({"v": 1}), pack(nasty.VALUES[-1])]
    texts += [
        base64.b64encode(zlib.compress(json.dumps(each).encode())).decode()
        for each in list(nasty.mutated(content))[::STRIDE]
    ]
    with tally("images that no node keeps") as counted:
        for text in texts:
            it = collecting()
            for known in (text, ""):
                try:
                    it.send(it.update("submit", plain(node.batch({**node.registration(known)}))))
                    it.send(it.update("recover_without", plain({"node": 2})))
                    it.query("state")
                    it.resolve(WELL)
                except (TaskFailed, AssertionError) as failed:
                    pytest.fail(f"{zlib.decompress(base64.b64decode(text)).decode()[:3000]}: {failed}")
            counted.count += 1


def _with_leases(content: Any, rows: Mapping[str, str]) -> str:
    """An image with these rows as its record of throttles on lease."""
    others = [row for row in content["configs"] if tuple(row[:2]) != throttle_leases.RECORD]
    return pack({**content, "configs": [[*throttle_leases.RECORD, dict(rows)], *others]})


def _lease_texts(text: str) -> list[str]:
    """What may be in the place of one lease's value: any text, any holder, and all that is nearly right."""
    held = json.loads(text)
    wrong = [*nasty.VALUES, *list(nasty.mutated(held))[::STRIDE]]
    holders = (RUN["run_id"], f" {RUN['run_id']}", f"{'w' * 1_001} {RUN['run_id']}", "w me", "me", " ", "\ud800 \ud800")
    return [
        "",
        "{",
        "[" * 100_000,
        *(json.dumps(each) for each in wrong),
        *(text.replace(f"{RUN['workflow_id']} {RUN['run_id']}", json.dumps(each)[1:-1]) for each in holders),
    ]


def test_no_lease_of_an_image_fails_a_workflow_task(caplog: pytest.LogCaptureFixture) -> None:
    """The record of throttles on lease comes from the nodes' disks as well."""
    caplog.set_level(logging.CRITICAL)
    it, node = collecting(), FakeMember(1)
    it.send(it.update("submit", plain(EXAMPLES["Cluster.submit"])))
    it.send(it.signal("reassign", plain(EXAMPLES["Cluster.reassign"] | {"release": None})))
    content = unpack(image.whole(ClusterState.of(it.query("state")))[0])
    (leases,) = (row[2] for row in content["configs"] if tuple(row[:2]) == throttle_leases.RECORD)
    assert len(leases) == 2, "of a node, and of a topic"
    rows = [{name: text} for name in leases for text in _lease_texts(leases[name])]
    rows += [{name: leases[key]} for name in ("", "x", "broker/x", "x/y/z", "topic//") for key in leases]
    with tally("leases that no controller records") as counted:
        for row in rows:
            it = collecting()
            try:
                it.send(it.update("submit", plain(node.batch(node.registration(_with_leases(content, row))))))
                assert it.query("describe")["phase"] == "serving"
                it.resolve(WELL, timers=True)
                it.send(it.signal("reassign", plain(EXAMPLES["Cluster.reassign"])))
            except (TaskFailed, AssertionError) as failed:
                pytest.fail(f"{json.dumps(row)[:3000]}: {failed}")
            counted.count += 1


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_no_parameter_fails_a_workflow_task(kind: type) -> None:
    """A run that cannot begin ends with InvalidPlan; one that can goes on."""
    example = PARAMETERS[kind]
    with tally("parameters that no run expects") as counted:
        for payloads in (*_lists(kind.__name__, example), (plain(example),)):
            try:
                it = Driven(kind, *payloads)
                for _ in range(3):
                    if it.ended is None:
                        it.resolve(FINE)
            except TaskFailed as failed:
                sent = [f"{each.metadata.get('encoding')!r} {each.data[:200]!r}" for each in payloads]
                pytest.fail(f"{kind.__name__}({', '.join(sent)}): {failed}")
            if it.ended is not None and it.ended.HasField("fail_workflow_execution"):
                failure = it.ended.fail_workflow_execution.failure
                assert failure.application_failure_info.type == "InvalidPlan", failure.message
            counted.count += 1


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ((plain({"node": "one"}),), "$.node must be a whole number, not a string"),
        ((plain({"node": 1}),), "$.incarnation is missing"),
        ((plain([1]),), "$ must be an object, not a list"),
        ((), "$ is missing: one argument is required"),
        ((plain({}), plain({})), "$ is followed by 1 more"),
        ((nasty.UNDECODABLE[0],), "$ must be an object, not a value that cannot be decoded (KeyError"),
    ],
)
def test_mistyped_signal_is_ignored_with_one_warning(
    payloads: tuple[Payload, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = serving()
    before = it.query("describe")
    with caplog.at_level(logging.WARNING):
        assert it.send(it.signal("lease_ended", *payloads)) == []
    (warning,) = _warnings(caplog)
    assert f"Ignored the signal lease_ended: {words}" in warning
    assert it.query("describe") == before


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("submit", {"node": "x"}, "$.node must be a whole number"),
        ("submit", {"node": 1, "incarnation": "\ud800", "commands": []}, "$.incarnation is not text"),
        ("recover_without", {"node": 10**30}, "$.node is 1000000000000000000000000000000, but must be at most"),
        ("recover_without", [], "$ must be an object, not a list"),
    ],
)
def test_mistyped_update_is_rejected_with_the_path_of_the_bad_field(name: str, payload: Any, words: str) -> None:
    it = serving()
    (refused,) = rejections(it.send(it.update(name, plain(payload))))
    assert refused["applicationFailureInfo"]["type"] == "InvalidPlan"
    assert refused["message"].startswith(words)


@pytest.mark.parametrize("name", ["pause", "resume", "set_throttle", "set_target", "drop"])
@pytest.mark.parametrize("count", [0, 2])
def test_update_with_another_number_of_arguments_is_rejected(name: str, count: int) -> None:
    if count == 0 and name in ("pause", "resume"):
        count = 1
    it = copying()
    (refused,) = rejections(it.send(it.update(name, *[plain({})] * count)))
    assert refused["applicationFailureInfo"]["type"] in ("InvalidPlan", "TooLate"), refused


def test_controller_responds_only_to_valid_run_ids() -> None:
    """The server refuses the whole task for a signal to an id that it does not take."""
    it = serving()
    for bad in ({**RUN, "run_id": "None"}, {**RUN, "workflow_id": ""}, {**RUN, "workflow_id": "w" * 1001}, {}):
        for name, more in (("locate", {"node": 1}), ("cancel_run", {}), ("directory_failed", {"notice": {}})):
            assert it.send(it.signal(name, plain({**more, **bad}))) == []
    answer = signals_in(it.send(it.signal("locate", plain({"node": 1, **RUN, "run_id": ""}))))
    assert answer == [(RUN["workflow_id"], "located", [{"node": 1, "known": True, "fenced": False, "probe": ""}])]


def test_response_with_too_few_results_is_ignored() -> None:
    it = asking()
    whole = EXAMPLES["PartitionReassignment.answered"]
    assert it.send(it.signal("answered", plain({**whole, "results": []}))) == []
    assert it.query("progress")["phase"] == "asking"
    it.send(it.signal("answered", plain(whole)))
    it.resolve({})
    assert it.query("progress")["phase"] == "catching_up"


def test_unreadable_report_keeps_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    it = copying()
    monkeypatch.setattr(move_replica, "time", SimpleNamespace(time=it.now.timestamp))
    (good,) = EXAMPLES["MoveReplica.copy_progress"]
    it.send(it.signal("copy_progress", plain([good])))
    for bad in ({"rate": "fast"}, {"bytes_total": None}, {"next_in": float("nan")}, {"seconds_by_reason": [1]}):
        it.send(it.signal("copy_progress", plain([{**good, "state": "lost", **bad}])))
    found = it.query("progress")["replicas"][0]
    assert (found["state"], found["rate"], found["bytes_copied"]) == ("copying", 1.5, 5)


def test_unknown_fields_of_a_newer_nodes_report_are_ignored() -> None:
    it = catching_up()
    (good,) = EXAMPLES["PartitionReassignment.copy_progress"]
    it.send(it.signal("copy_progress", plain([{**good, "temperature": [40]}])))
    assert it.query("progress")["partitions"][0]["bytes_total"] == good["bytes_total"] == 10


def test_undecodable_parameter_fails_the_run_with_the_reason() -> None:
    for kind in (MoveReplica, DirectoryFailure, NodeLease, Cluster):
        it = Driven(kind, nasty.UNDECODABLE[11])
        assert it.ended is not None
        failure = it.ended.fail_workflow_execution.failure
        assert "binary/encrypted" in failure.message, kind


def test_unreadable_carried_state_fails_only_the_task() -> None:
    """Ended, it would lose all metadata; its task is tried again until the right program runs."""
    carried = {**PARAMETERS[Cluster], "v": 99}
    started_by_hand = Driven(Cluster, plain(carried))
    assert started_by_hand.ended is not None and started_by_hand.ended.HasField("fail_workflow_execution")
    with pytest.raises(TaskFailed, match="format 99"):
        Driven(Cluster, plain(carried), continued=True)


@pytest.mark.parametrize(
    "command",
    [
        {"do": "alter_configs", "kind": "broker", "name": "1", "changes": {"cordoned.log.dirs": "/\ud800"}},
        {"do": "alter_configs", "kind": "broker", "name": "1", "changes": {"cordoned.log.dirs": "/" * 40_000}},
        {"do": "alter_configs", "kind": "broker", "name": "²", "changes": {"cordoned.log.dirs": "/a"}},
        {"do": "alter_configs", "kind": "topic", "name": "t", "changes": {"min.cleanable.dirty.ratio": "1" * 30_000}},
        {"do": "alter_reassignments", "partitions": [["t", 0, [2]]], "client": "\ud800"},
    ],
    ids=["half a character", "too long", "no number", "long to match", "half a client"],
)
def test_values_that_would_fail_a_later_task_are_rejected(command: dict[str, Any]) -> None:
    """Ids, images and patterns take less than JSON does."""
    it = serving()
    before = time.process_time()
    (completed,) = (each for each in it.send(it.update("submit", plain(FakeMember(1).batch(command)))) if is_done(each))
    ((result,),) = json.loads(completed.update_response.completed.data)["results"]
    assert result["error"], result
    assert time.process_time() - before < 1.0
    _goes_on(it, Cluster)


def test_registration_with_a_too_long_incarnation_is_rejected() -> None:
    it, node = collecting(), FakeMember(1, incarnation="i" * 1_000)
    it.send(it.update("submit", plain(node.batch(node.registration()))))
    _goes_on(it, Cluster)
    assert it.query("describe")["nodes"] == []


def _lease_of(holder: str) -> str:
    """An image of a node that is alone, and on which this holder has a throttle."""
    it, node = collecting(), FakeMember(1)
    it.send(it.update("submit", plain(node.batch(node.registration()))))
    content = unpack(image.whole(ClusterState.of(it.query("state")))[0])
    content["configs"] = [["broker", "1", {MOVE_RATE: "9"}]]
    return _with_leases(content, {f"broker/1/{MOVE_RATE}": json.dumps([None, [[holder, "9"]]])})


@pytest.mark.parametrize("holder", ["me", f"{'w' * 1_001} {RUN['run_id']}", f" {RUN['run_id']}", "w me"])
def test_lease_of_an_invalid_holder_is_released_at_once(holder: str) -> None:
    it, node = collecting(), FakeMember(1)
    sent = it.send(it.update("submit", plain(node.batch(node.registration(_lease_of(holder))))))
    assert signals_in(sent) == []
    configs = {tuple(row[:2]): row[2] for row in it.query("state")["configs"]}
    assert configs == {("broker", "1"): {}, throttle_leases.RECORD: {}}
    _goes_on(it, Cluster)


def test_holders_of_leases_are_signalled_after_a_recovery() -> None:
    it, node = collecting(), FakeMember(1)
    holder = f"{RUN['workflow_id']} {RUN['run_id']}"
    sent = it.send(it.update("submit", plain(node.batch(node.registration(_lease_of(holder))))))
    assert signals_in(sent) == [(RUN["workflow_id"], "answered", [{"request": 0}])]


@pytest.mark.parametrize(
    ("node", "incarnation", "carried"), [(1, "i1", [[1, "i1"]]), (7, "i7", []), (1, "i" * 1_000_000, [])]
)
def test_only_the_ends_of_leases_that_may_be_held_are_carried(node: int, incarnation: str, carried: Any) -> None:
    it = serving()
    it.send(it.signal("lease_ended", plain({"node": node, "incarnation": incarnation})))
    it.length = 100_000
    # The node answers its probe, and gets no other lease before this run ends.
    it.send(it.signal("locate", plain(EXAMPLES["Cluster.locate"])))
    while it.ended is None:
        it.resolve(WELL, timers=True)
    (parameter,) = it.ended.continue_as_new_workflow_execution.arguments
    assert json.loads(parameter.data).get("lapsed", []) == carried


def test_lease_returns_the_nodes_that_are_left_out() -> None:
    it = holding()
    it.resolve({})
    it.send(it.signal("answered", plain(EXAMPLES["ThrottleLease.answered"])))
    (done,) = (each for each in it.send(it.update("held")) if is_done(each))
    assert json.loads(done.update_response.completed.data) == {"format_version": 1, "held": True, "left_out": [2]}


def test_reassign_signal_without_a_run_id_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    it = serving()
    with caplog.at_level(logging.WARNING):
        assert it.send(it.signal("reassign", plain({**EXAMPLES["Cluster.reassign"], "run_id": ""}))) == []
    assert "Ignored the signal reassign: $.run_id is empty" in _warnings(caplog)[0]


def test_reassign_signal_has_at_most_a_thousand_partitions() -> None:
    it = serving()
    looks = [["t", 0]] * 1_001
    assert it.send(it.signal("reassign", plain({**EXAMPLES["Cluster.reassign"], "looks": looks}))) == []


def test_messages_that_quote_their_request_are_bounded() -> None:
    it = Driven(MoveReplica, plain([{**MOVES[0], "x" * 1_000_000: 1}]))
    assert it.ended is not None and it.ended.ByteSize() < 10_000


def answer(it: Driven, activity: str) -> WorkflowActivationJob:
    """The job that brings the answer of the only open step: all went well."""
    ((kind, seq),) = [key for key in it.open if key[0] == "schedule_activity"]
    step = it.open.pop((kind, seq)).schedule_activity
    assert step.activity_type == activity
    job = WorkflowActivationJob()
    job.resolve_activity.seq = seq
    job.resolve_activity.result.CopyFrom(completed(WELL[activity](json.loads(step.arguments[0].data))))
    return job


@pytest.mark.parametrize(
    ("answered", "follows"),
    [
        # The order's own step begins, and is left alone.
        ([calls.CREATE_MOVE], calls.CREATE_MOVE),
        ([calls.CREATE_MOVE, calls.COPY], calls.CREATE_MOVE),
        # The swap was faster: the replica is in place, and the source is deleted.
        ([calls.CREATE_MOVE, calls.COPY, calls.SWAP], calls.DELETE_REPLICA),
    ],
)
def test_update_together_with_a_steps_result_is_applied_after_it(answered: list[str], follows: str) -> None:
    it = Driven(MoveReplica, plain(PARAMETERS[MoveReplica]))
    for activity in answered[:-1]:
        it.send(answer(it, activity))
    order = {"topic": "t", "partition": 0, "directory": "/disk/c"}
    given = it.send(answer(it, answered[-1]), it.update("set_target", plain(order)))
    assert [each.schedule_activity.activity_type for each in given if each.HasField("schedule_activity")] == [follows]
    assert not any(each.HasField("request_cancel_activity") for each in given)
    responses = [each.update_response for each in given if each.HasField("update_response")]
    refused = [each.rejected.application_failure_info.type for each in responses if each.HasField("rejected")]
    assert refused == (["TooLate"] if follows == calls.DELETE_REPLICA else [])
