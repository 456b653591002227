"""The page "On your own cluster", command by command, on a broker of Apache Kafka with SASL_SSL and ACLs.

The user of the worker has the rights of the page's table alone, and its password is in no history, log or error. Each
other way to log in that the page names is tried with the dry run, which asks for all that a plan reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import javaproperties
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from activities.kafka_admin.admin import KafkaAdmin
from ops.cli import main as cli
from ops.docs import searching
from ops.kafka import brokers, tools
from ops.kafka.brokers import Broker, Registered
from ops.kafka.cluster import CLUSTER_ID, PROPERTIES
from ops.kafka.jars import runtime
from ops.stack import ports
from ops.stack.errors import ExitCode
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import until
from tests.support.programs.kafka import require_kafka
from tests.support.programs.openssl import certificate
from tests.support.programs.temporal import TemporalServer, temporal_server
from workflows.model import names

__all__ = ["temporal_server"]

ROOT = Path(__file__).parents[3]
PAGE = Path(searching.__file__).with_name("own-cluster.md").read_text()
SECRET = "hush-4711-no-one-may-see-this"
USER, CLUSTER, TOPIC = "rehome", "secured", "orders"
HOST = "127.0.0.1"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def commands() -> list[list[str]]:
    """The commands of the page that this file runs, in their order."""
    blocks = re.findall(r"run by tests/ops/kafka/test_own_cluster.py -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def rights() -> list[tuple[str, str]]:
    """Resource and operation, as the page's table has them."""
    rows = re.findall(r"^\| (Cluster|Topic) (?:`\*` )?\| ([A-Za-z, ]+) \|", PAGE, re.MULTILINE)
    return [(resource, operation) for resource, listed in rows for operation in listed.split(", ")]


class Secured:
    """A broker whose listener SECURE takes SASL_SSL alone, and MUTUAL clients with the user's certificate; the tests'
    own, PLAINTEXT, is that of a super user.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, first = folder, ports.some_block(4)
        disks = tuple(folder / f"disk-{number}" for number in (1, 2))
        self.broker = Broker(1, first, first + 1, disks, folder / "server.properties")
        self.secure = f"{HOST}:{first + 2}"
        self.mutual = f"{HOST}:{first + 3}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Secured:
        self.certificate, store = certificate(self.folder, "broker", "-addext", f"subjectAltName=IP:{HOST}")
        users, self.store = certificate(self.folder, USER, password=SECRET)
        broker = self.broker
        for disk in broker.log_dirs:
            disk.mkdir(parents=True)
        clients = f"PLAINTEXT://{broker.address},SECURE://{self.secure},MUTUAL://{self.mutual}"
        values = brokers.server_properties(
            broker,
            [broker],
            {
                **PROPERTIES,
                "listeners": f"{clients},CONTROLLER://{broker.controller_address}",
                "advertised.listeners": clients,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL",
                "listener.name.mutual.ssl.client.auth": "required",
                "listener.name.mutual.ssl.truststore.type": "PEM",
                "listener.name.mutual.ssl.truststore.location": str(users),
                "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
                "listener.name.secure.sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAMS)),
                **{f"listener.name.secure.{each.lower()}.sasl.jaas.config": f"{SCRAM};" for each in SCRAMS},
                "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{SECRET}";',
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(store),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "replica.fetch.max.bytes": "65536",
            },
        )
        broker.config.write_text(javaproperties.dumps(values, timestamp=False))
        brokers.format_storage(broker, CLUSTER_ID)
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                brokers.command(runtime(), broker), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=tools.die_with_parent,
            )  # fmt: skip
        registered = Registered(broker.address)
        until(lambda: registered.read() == {1}, 180, "the broker has started")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def prepare(self) -> None:
        """Make a topic with some data, and give the user the rights of the page."""
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        kinds = {"Cluster": (ResourceType.BROKER, "kafka-cluster"), "Topic": (ResourceType.TOPIC, "*")}
        wanted = [
            AclBinding(
                *kinds[resource], ResourcePatternType.LITERAL, f"User:{USER}", "*",
                AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()], AclPermissionType.ALLOW,
            )
            for resource, operation in rights()
        ]  # fmt: skip
        logins = [
            UserScramCredentialUpsertion(
                USER, ScramCredentialInfo(ScramMechanism[each.replace("-", "_")], 4096), SECRET.encode()
            )
            for each in SCRAMS
        ]
        made = [
            *admin.create_acls(wanted).values(),
            *admin.create_topics([NewTopic(TOPIC, 1, 1)]).values(),
            *(future for each in logins for future in admin.alter_user_scram_credentials([each]).values()),
        ]
        for future in made:
            future.result(60)
        producer = Producer({"bootstrap.servers": self.broker.address})
        for _ in range(2_000):
            producer.produce(TOPIC, bytes(1_000), partition=0)
        assert producer.flush(60) == 0

    def directory(self) -> str:
        """The log directory of the topic's replica."""
        with KafkaAdmin(self.broker.address) as admin:
            views = admin.log_dirs([1])
        (found,) = (
            view.path
            for view in views
            for each in view.replicas
            if each.partition == TopicPartition(TOPIC, 0) and not each.future
        )
        return str(found)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    require_kafka()
    with Secured(tmp_path_factory.mktemp("secured")) as made:
        made.prepare()
        yield made


@pytest.fixture
def client_properties(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={secured.secure}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} username="{USER}" password="{SECRET}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.certificate}\n"
    )
    return path


def moves(secured: Secured) -> tuple[str, str]:
    """Write the page's moves.json; returns the directory that the replica is in, and the one that it is to go to."""
    source = secured.directory()
    target = next(str(path) for path in secured.broker.log_dirs if str(path) != source)
    row = {"topic": TOPIC, "partition": 0, "replicas": [1], "log_dirs": [target]}
    Path("moves.json").write_text(json.dumps({"version": 1, "partitions": [row]}))
    return source, target


@contextlib.contextmanager
def orchestrator(config: Path, server: TemporalServer) -> Iterator[Path]:
    """The worker of plans, as the page starts it; yields its log."""
    (words,) = re.findall(r"`python (worker.py orchestrator [^`]*)`", PAGE)
    arguments = shlex.split(words.replace("--cluster prod", f"--cluster {CLUSTER} --plan-dir plans"))
    log = config.with_name("worker.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / arguments[0]), "--log-level", "DEBUG", *arguments[1:]],
            cwd=config.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=tools.die_with_parent,
        )  # fmt: skip
    try:
        yield log
    finally:
        process.kill()
        process.wait()


async def _histories(server: TemporalServer) -> dict[str, bytes]:
    client = await server.client()
    found = {}
    async for run in client.list_workflows(f"TaskQueue = '{names.plans_queue(CLUSTER)}'"):
        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        found[f"{run.id} {run.run_id}"] = b"".join(event.SerializeToString() for event in history.events)
    return found


def test_page_has_the_rights_and_commands_that_are_tried() -> None:
    assert len(rights()) == 7 and [words[2] for words in commands() if words[1] == "plan"] == [
        "check", "submit", "show", "approve", "throttle", "slots", "watch", "verify", "rollback", "watch", "submit",
        "cancel",
    ]  # fmt: skip


def test_page_leads_from_the_dry_run_to_the_end_and_back_and_no_secret_is_seen(
    secured: Secured,
    client_properties: Path,
    temporal_server: TemporalServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("REHOME_CLUSTER", CLUSTER)
    source, target = moves(secured)
    seen: list[str] = []

    def rehome(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(list(words))
        shown = capsys.readouterr()
        seen.append(shown.out + shown.err)
        return code, seen[-1]

    with orchestrator(client_properties, temporal_server) as log:
        ended: dict[str, str] = {}
        for number, (program, *words) in enumerate(commands()):
            assert program == "rehome"
            if words[:1] == ["throttles"]:  # The page's last one: the plan has to end first.
                code, said = rehome("plan", "watch", "august")
                assert code == ExitCode.FAILED and "ended as cancelled" in said, said
            code, ended[" ".join(words[:3])] = rehome(*words)
            assert code == 0, f"command {number + 1}, {' '.join(words)}: {ended[' '.join(words[:3])]}\n{_end(log)}"
            if words[1] == "verify":
                assert secured.directory() == target
            if words[1:3] == ["watch", "july-rollback"]:
                assert secured.directory() == source
        assert "1 move in 1 lane" in ended["plan check moves.json"]
        assert "awaiting approval" in ended["plan show july"]
        assert secured.directory() == source, "the cancelled plan has moved nothing"
        client_properties.write_text(client_properties.read_text().replace(SECRET, f"{SECRET}-but-wrong"))
        code, said = rehome("plan", "check", "moves.json", "--command-config", "client.properties")
        assert code in (ExitCode.FAILED, ExitCode.REFUSED, ExitCode.TIMEOUT) and said.count("error: ") == 1, said
        texts = {f"output {number}": text.encode() for number, text in enumerate(seen)}
        histories = asyncio.run(_histories(temporal_server))
        assert any(TOPIC.encode() in text for text in histories.values()), "what a history has can be found"
        texts |= {"the worker's log": log.read_bytes(), **histories}
        texts |= {str(path): path.read_bytes() for path in Path("plans").rglob("*") if path.is_file()}
        assert len(texts) > len(seen) + 5, "the histories of plans, lanes and keepers are read"
        assert [name for name, text in texts.items() if SECRET.encode() in text] == []


def scram(secured: Secured, mechanism: str, password: str) -> str:
    return (
        f"bootstrap.servers={secured.secure}\nsecurity.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={SCRAM} username="{USER}" password="{password}";\n'
    )


def mutual(secured: Secured, password: str) -> str:
    return (
        f"bootstrap.servers={secured.mutual}\nsecurity.protocol=SSL\nssl.keystore.type=PEM\n"
        f"ssl.keystore.location={secured.store}\nssl.key.password={password}\n"
    )


@pytest.mark.parametrize("way", [*SCRAMS, "mutual TLS"])
def test_each_way_to_log_in_takes_the_file_that_kafkas_tools_take(
    way: str, secured: Secured, client_properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moves(secured)

    def checked(password: str) -> tuple[int, str]:
        login = mutual(secured, password) if way == "mutual TLS" else scram(secured, way, password)
        trust = f"ssl.truststore.type=PEM\nssl.truststore.location={secured.certificate}\n"
        client_properties.write_text(login + trust)
        code = cli.run(["plan", "check", "moves.json", "--command-config", str(client_properties)])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    code, said = checked(SECRET)
    assert code == 0 and "1 move in 1 lane" in said, said
    bootstrap = secured.mutual if way == "mutual TLS" else secured.secure
    ran = tools.run(
        "kafka-log-dirs", "--describe", "--command-config", str(client_properties), bootstrap=bootstrap, timeout=60
    )
    assert ran.code == 0 and f"{TOPIC}-0" in ran.out, ran.out + ran.err
    code, said = checked(f"{SECRET}-but-wrong")
    assert code in (ExitCode.FAILED, ExitCode.REFUSED, ExitCode.TIMEOUT, ExitCode.USAGE), said
    assert said.count("error: ") == 1 and SECRET not in said, said


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:]
