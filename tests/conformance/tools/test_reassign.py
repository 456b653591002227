"""kafka-reassign-partitions: generate, execute, verify, cancel and list, with log directories and both throttles.

Plans here keep the replica sets and change log directories; those between nodes are in `replication`.
"""

from __future__ import annotations

import json

import pytest

from tests.conformance.clusters import BROKER_RESOURCE, TOPIC_RESOURCE, WIDE, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import ask, on_disk, others, wait_until_in, where
from tests.conformance.plans import MOVE_RATE, NOTHING_MOVES, ROLLBACK, SLOW, TOOL, WARNING, Plans, config


def held_topic(cluster: Cluster, node: int = 1) -> tuple[str, str, str]:
    """A topic with enough in it to be held in a move, where it is, and where it is not."""
    topic = cluster.new_topic(assignment={0: [node]})
    cluster.produce(topic, 0, 400, size=1000, per_batch=20)
    return topic, str(where(cluster, node, topic)), others(cluster, node, topic)[0]


@pytest.mark.conformance(166, 171, 173, 175, 189)
@pytest.mark.feature("113-25", "113-28", "113-30", "113-37", "455-14", "455-27")
def test_move_from_execute_to_verify(cluster: Cluster, plans: Plans) -> None:
    topic, source, target = held_topic(cluster)
    file = plans.of((topic, 0, [1], [target]))
    code, lines = plans.run("execute", file, *SLOW)
    assert code == 0
    now = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [source]}]}
    assert lines[0] == "Current partition replica assignment"
    current = json.loads(lines[2])
    if current != now:  # unless it is told where they are
        now["partitions"][0]["log_dirs"] = ["any"]  # type: ignore[index]
    assert current == now
    assert lines[1] == lines[3] == "" and lines[4] == ROLLBACK
    assert lines[5:] == [
        WARNING,
        "The replica-alter-dir throttle limit was set to 1 B/s",
        f"Successfully started partition reassignment for {topic}-0",
        f"Successfully started moving log directory to {target} for replica {topic}-0 with broker 1 ",
    ]
    assert config(cluster, BROKER_RESOURCE, "1") == {MOVE_RATE: "1"}
    code, lines = plans.run("verify", file)
    assert (code, lines) == (
        0,
        [
            "Status of partition reassignment:",
            f"Reassignment of partition {topic}-0 is completed.",
            f"Reassignment of replica {topic}-0-1 is still in progress.",
        ],
    )
    assert config(cluster, BROKER_RESOURCE, "1") == {MOVE_RATE: "1"}
    code, lines = plans.run("execute", file, "--additional", "--replica-alter-log-dirs-throttle", "100000000")
    assert code == 0 and "The replica-alter-dir throttle limit was set to 100000000 B/s" in lines
    wait_until_in(cluster, 1, topic, target)
    code, lines = plans.run("verify", file, "--preserve-throttles")
    done = f"Reassignment of replica {topic}-0-1 completed successfully."
    assert code == 0 and lines[2:] == [done]
    assert config(cluster, BROKER_RESOURCE, "1") == {MOVE_RATE: "100000000"}
    code, lines = plans.run("verify", file)
    assert code == 0 and lines[2:] == [
        done,
        "Clearing broker-level throttles on brokers 1,2,3",
        f"Clearing topic-level throttles on topic {topic}",
    ]
    assert config(cluster, BROKER_RESOURCE, "1") == {}


@pytest.mark.conformance(166)
@pytest.mark.feature("113-05", "113-30")
def test_cancelled_move(cluster: Cluster, plans: Plans) -> None:
    topic, source, target = held_topic(cluster)
    file = plans.of((topic, 0, [1], [target]))
    assert plans.run("execute", file, *SLOW)[0] == 0
    code, lines = plans.run("cancel", file, "--preserve-throttles")
    assert code == 0 and lines == [
        "None of the specified partition reassignments are active.",
        f"Successfully started moving log directory to {source} for replica {topic}-0 with broker 1 ",
    ]
    assert where(cluster, 1, topic, future=True) is None and where(cluster, 1, topic) == source
    assert config(cluster, BROKER_RESOURCE, "1") == {MOVE_RATE: "1"}
    code, lines = plans.run("verify", file, "--preserve-throttles")
    assert code == 0 and lines[2:] == [
        f"Partition {topic}-0 on broker 1 is not being moved from log dir {source} to {target}."
    ]
    code, lines = plans.run("cancel", file)
    assert code == 0 and lines[0] == "None of the specified partition reassignments are active."
    assert lines[1].startswith(NOTHING_MOVES) and "Clearing broker-level throttles on brokers 1,2,3" in "\n".join(lines)
    assert config(cluster, BROKER_RESOURCE, "1") == {}
    cluster.eventually(lambda: on_disk(cluster, 1, topic) == [f"{topic}-0"], "the copy is off the disk")


@pytest.mark.conformance(166)
@pytest.mark.feature("113-08", "113-30")
def test_verify_tells_of_another_target_and_of_a_replica_that_is_not_there(cluster: Cluster, plans: Plans) -> None:
    topic, source, target = held_topic(cluster, WIDE)
    (third,) = (path for path in others(cluster, WIDE, topic) if path != target)
    assert plans.run("execute", plans.of((topic, 0, [WIDE], [target])), *SLOW)[0] == 0
    code, lines = plans.run("verify", plans.of((topic, 0, [WIDE], [third])), "--preserve-throttles")
    moving = f"Partition {topic}-0 on broker {WIDE} is being moved to log dir {target} instead of {third}."
    assert code == 0 and lines[2:] == [moving]
    elsewhere = plans.of((topic, 0, [1], [cluster.log_dirs[1][0]]))
    code, lines = plans.run("verify", elsewhere, "--preserve-throttles")
    assert code == 0 and lines[1:] == [
        f"There is no active reassignment of partition {topic}-0, but replica set is {WIDE} rather than 1.",
        f"Partition {topic}-0 is not found in any live log dir on broker 1. "
        "There is likely an offline log directory on the broker.",
    ]
    code, lines = plans.run("execute", plans.of((topic, 0, [WIDE], [third])), "--additional", *SLOW)
    assert code == 0 and where(cluster, WIDE, topic, future=True) == third
    code, lines = plans.run("cancel", plans.of((topic, 0, [WIDE], [third])))
    assert code == 0 and where(cluster, WIDE, topic, future=True) is None and where(cluster, WIDE, topic) == source


@pytest.mark.conformance(163, 171, 173)
@pytest.mark.feature("113-25", "113-26", "113-28")
def test_any_and_no_directories_move_nothing(cluster: Cluster, plans: Plans) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    before = [where(cluster, node, topic, partition) for partition, node in ((0, 1), (1, 2))]
    for dirs in (None, ["any"]):
        code, lines = plans.run("execute", plans.of((topic, 1, [2], dirs), (topic, 0, [1], dirs)))
        assert code == 0 and lines[5:] == [f"Successfully started partition reassignments for {topic}-0,{topic}-1"]
        saved = json.loads(lines[2])["partitions"]
        assert [(row["partition"], row["replicas"]) for row in saved] == [(0, [1]), (1, [2])]
    code, lines = plans.run("verify", plans.of((topic, 0, [1], None), (topic, 1, [2], None)))
    assert code == 0 and lines[1:3] == [f"Reassignment of partition {topic}-{p} is completed." for p in (0, 1)]
    assert [where(cluster, node, topic, partition) for partition, node in ((0, 1), (1, 2))] == before


@pytest.mark.conformance(169, 171, 182)
@pytest.mark.feature("455-14")
def test_generate_proposes_and_changes_nothing(cluster: Cluster, plans: Plans, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    cluster.produce(topic, 0, 1)
    file = plans.file({"version": 1, "topics": [{"topic": topic}]})
    generate = (TOOL, "--generate", "--topics-to-move-json-file", file)
    code, out, err = tools.run(*generate, "--broker-list", "3")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "Current partition replica assignment" and lines[2] == ""
    assert lines[3] == "Proposed partition reassignment configuration"
    current, proposed = (json.loads(lines[i])["partitions"] for i in (1, 4))
    places = [where(cluster, node, topic, partition) for partition, node in ((0, 1), (1, 2))]
    assert [(row["partition"], row["replicas"]) for row in current] == [(0, [1]), (1, [2])]
    assert [row["log_dirs"] for row in current] in ([[place] for place in places], [["any"], ["any"]])
    assert [(row["replicas"], row["log_dirs"]) for row in proposed] == [([3], ["any"])] * 2
    assert [cluster.leaders(topic)[partition] for partition in (0, 1)] == [1, 2]
    code, out, _ = tools.run(*generate, "--broker-list", "1,1")
    assert code == 1 and "Broker list contains duplicate entries" in out
    twice = plans.file({"version": 1, "topics": [{"topic": topic}, {"topic": topic}]})
    code, out, _ = tools.run(TOOL, "--generate", "--topics-to-move-json-file", twice, "--broker-list", "1")
    assert code == 1 and "List of topics to reassign contains duplicate entries" in out
    unknown = plans.file({"version": 1, "topics": [{"topic": "no-such-topic"}]})
    code, out, _ = tools.run(TOOL, "--generate", "--topics-to-move-json-file", unknown, "--broker-list", "1")
    assert (code == 1 and "Topic no-such-topic not found" in out) or "does not exist" in out or "UnknownTopic" in out


@pytest.mark.conformance(173, 174, 167, 179)
@pytest.mark.feature("113-28", "113-49")
def test_what_cannot_be_executed_changes_nothing(cluster: Cluster, plans: Plans) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    here = str(where(cluster, 1, topic))
    throttled = ("--throttle", "1000", *SLOW)
    for file, complaint in (
        (plans.of(), "Partition reassignment list cannot be empty"),
        (
            plans.of((topic, 0, [1], None), (topic, 0, [1], None)),
            "Partition reassignment contains duplicate topic part",
        ),
        (plans.of((topic, 0, [1, 1], None)), "Partition replica lists may not contain duplicate entries"),
        (plans.of((topic, 0, [1], [here, here])), "log dirs"),
        (plans.of((topic, 0, [9], None)), "Unknown broker id 9"),
        (plans.of(("no-such-topic", 0, [1], None)), "no-such-topic"),
        (plans.of((topic, 5, [1], None)), f"Unable to find partition: {topic}-5"),
        (plans.file("{"), "Error: "),
        (plans.file({"version": 2, "partitions": []}), "Not supported version field value 2"),
    ):
        code, lines = plans.run("execute", file, *throttled)
        assert code == 1 and complaint in "\n".join(lines), lines
        assert config(cluster, BROKER_RESOURCE, "1") == {} and config(cluster, TOPIC_RESOURCE, topic) == {}


@pytest.mark.feature("113-28", "113-45")
def test_directory_that_a_broker_does_not_have_is_told(cluster: Cluster, plans: Plans) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    code, lines = plans.run("execute", plans.of((topic, 0, [1], ["/nowhere"])))
    assert code == 1
    assert any(line.startswith("Error: Failed to alter dir for ") for line in lines)
    assert "LogDirNotFoundException" in "\n".join(lines)
    code, lines = plans.run("execute", plans.of((topic, 0, [1], ["relative"])))
    assert code == 1


@pytest.mark.feature("455-15")
def test_list_says_when_nothing_is_reassigned(cluster: Cluster, tools: Tools) -> None:
    assert tools.run(TOOL, "--list") == (0, "No partition reassignments found.\n", "")


@pytest.mark.conformance(191)
def test_controllers_as_bootstrap_servers(cluster: Cluster, plans: Plans, tools: Tools) -> None:
    at = ("--bootstrap-controller", cluster.controllers)
    code, out, _ = tools.run(TOOL, "--list", *at)
    if cluster.differs("no-controller-listeners"):
        assert code == 1 and "sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER" in out
    else:
        assert (code, out) == (0, "No partition reassignments found.\n")
    topic = cluster.new_topic(assignment={0: [1]})
    for action in ("execute", "verify"):
        file = ("--reassignment-json-file", plans.of((topic, 0, [1], None)))
        code, _, err = tools.run(TOOL, f"--{action}", *file, *at)
        assert code == 1 and "bootstrap-controller" in err


@pytest.mark.conformance(165)
def test_verify_and_cancel_of_what_is_not_there(cluster: Cluster, plans: Plans) -> None:
    code, lines = plans.run("verify", plans.of(("no-such-topic", 0, [1, 2], None)), "--preserve-throttles")
    assert code == 0 and lines[1] == (
        "There is no active reassignment of partition no-such-topic-0, but replica set is  rather than 1,2."
    )
    code, lines = plans.run("cancel", plans.of(("no-such-topic", 0, [1, 2], None)), "--preserve-throttles")
    assert code == 0 and lines[0] == "None of the specified partition reassignments are active."
    assert lines[1].startswith(NOTHING_MOVES)


@pytest.mark.conformance(172, 175, 176, 184)
@pytest.mark.feature("455-27", "113-42")
def test_throttles_between_brokers_are_set_and_cleared(cluster: Cluster, plans: Plans) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    cluster.produce(topic, 0, 10)
    file = plans.of((topic, 0, [2], None))
    code, lines = plans.run("execute", file, "--throttle", "50000000")
    assert lines[6] == "The inter-broker throttle limit was set to 50000000 B/s"
    assert code == 0 and lines[7] == f"Successfully started partition reassignment for {topic}-0"
    state = f"Reassignment of partition {topic}-0 is completed."
    cluster.eventually(lambda: all(cluster.leaders(topic, node) == {0: 2} for node in cluster.addresses), "all know it")
    rates = {f"{side}.replication.throttled.rate": "50000000" for side in ("leader", "follower")}
    assert [config(cluster, BROKER_RESOURCE, node) for node in ("1", "2", "3")] == [rates, rates, {}]
    assert config(cluster, TOPIC_RESOURCE, topic) == {
        "leader.replication.throttled.replicas": "0:1",
        "follower.replication.throttled.replicas": "0:2",
    }
    assert plans.run("verify", file, "--preserve-throttles")[1][1] == state
    assert config(cluster, BROKER_RESOURCE, "2") == rates
    code, lines = plans.run("verify", file)
    assert code == 0 and lines[1] == state
    assert lines[-2:] == [
        "Clearing broker-level throttles on brokers 1,2,3",
        f"Clearing topic-level throttles on topic {topic}",
    ]
    assert [config(cluster, BROKER_RESOURCE, node) for node in ("1", "2", "3")] == [{}, {}, {}]
    cluster.eventually(lambda: config(cluster, TOPIC_RESOURCE, topic) == {}, "also on the node that is asked")


@pytest.mark.conformance(190, 191)
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Command must include exactly one action"),
        (("--list", "--verify"), "Command must include exactly one action"),
        (("--execute",), "Missing required argument"),
        (("--verify", "--reassignment-json-file", "x", "--throttle", "1"), "Option"),
        (("--generate", "--broker-list", "1"), "Missing required argument"),
        (("--list", "--bootstrap-server", "a:1", "--bootstrap-controller", "a:1"), "Please don't specify both"),
        (
            ("--verify", "--reassignment-json-file", "x", "--bootstrap-controller", "a:1"),
            'Option "[bootstrap-controller]" can\'t be used with action "[verify]"',
        ),
    ],
)
def test_arguments_that_do_not_fit(cluster: Cluster, tools: Tools, arguments: tuple[str, ...], complaint: str) -> None:
    code, _, err = tools.run(TOOL, *arguments)
    assert code == 1 and complaint in err


@pytest.mark.conformance(173)
@pytest.mark.feature("113-06", "113-07", "113-29")
def test_wish_by_the_api_places_what_the_tool_shows(cluster: Cluster, tools: Tools) -> None:
    topic, target = cluster.new_topic() + "-wish", cluster.log_dirs[1][1]
    assert ask(cluster, 1, topic, target) == 3
    assert tools.out("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "1")
    cluster.eventually(lambda: cluster.leaders(topic) == {0: 1})
    cluster.eventually(lambda: where(cluster, 1, topic) == target)
