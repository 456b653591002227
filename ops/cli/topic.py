"""rehome topic: manages topics through Kafka's API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ops.cli import nodes, output
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.options import Bootstrap, Data, Json, group
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, UsageError
from storage_node.model.ids import TopicPartition

app = group("Create, list, describe and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Number of partitions.")] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", min=1, help="Replicas per partition.")] = 1,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic config; may be repeated.")
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Create a topic."""
    configs = parse_configs(config or [])
    with KafkaAdmin(resolve(data, bootstrap).need_kafka()) as admin:
        admin.create_topic(name, partitions, replication_factor, configs)
    if json:
        output.print_json({"name": name, "partitions": partitions, "replication_factor": replication_factor})
    else:
        typer.echo(f"created topic {name} with {partitions} partition{'s' if partitions > 1 else ''}")


@app.command("list")
def list_topics(data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List the topics' names."""
    with KafkaAdmin(resolve(data, bootstrap).need_kafka()) as admin:
        names = admin.topics()
    output.show(names, json, ("topic",), ([name] for name in names), "no topics")


@app.command()
def describe(name: Name, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show each partition's leader, replicas, in-sync and offline replicas, those that a reassignment adds and removes,
    and each replica's directory and size; then each failed file that took a replica offline, and why.
    """
    target = resolve(data, bootstrap)
    with KafkaAdmin(target.need_kafka()) as admin:
        topic = admin.describe([name])[0]
        under_way = admin.reassignments()
        views = admin.log_dirs()
    failed: dict[int, list[dict[str, Any]]] = {}
    for row in _failed(target, name) if any(each["offline"] for each in topic["partitions"]) else ():
        failed.setdefault(row["partition"], []).append(row)
    placed: dict[int, list[dict[str, Any]]] = {}
    for view in views:
        for replica in view.replicas:
            if replica.partition.topic == name:
                row = {
                    "node": replica.node,
                    "directory": replica.directory,
                    "bytes": replica.size,
                    "future": replica.future,
                }
                placed.setdefault(replica.partition.partition, []).append(row)
    for partition in topic["partitions"]:
        moving = under_way.get(TopicPartition(name, partition["partition"]))
        partition["adding"] = list(moving.adding) if moving else []
        partition["removing"] = list(moving.removing) if moving else []
        partition["log_dirs"] = placed.get(partition["partition"], [])
        partition["failed_replicas"] = [
            {key: row[key] for key in ("node", "directory", "file", "reason")}
            for row in failed.get(partition["partition"], [])
        ]
    output.show(
        topic,
        json,
        ("partition", "leader", "replicas", "isr", "adding", "removing", "offline", "node", "bytes", "directory"),
        (
            [
                p["partition"],
                p["leader"],
                ",".join(map(str, p["replicas"])),
                ",".join(map(str, p["isr"])),
                ",".join(map(str, p["adding"])) or "-",
                ",".join(map(str, p["removing"])) or "-",
                ",".join(map(str, p["offline"])) or "-",
                row["node"] if row else "-",
                output.size(row["bytes"]) if row else "-",
                (row["directory"] + (" (being copied)" if row["future"] else "")) if row else "-",
            ]
            for p in topic["partitions"]
            for row in (p["log_dirs"] or [None])
        ),
        f"topic {name} has no partitions",
    )
    for rows in failed.values() if not json else ():
        for row in rows:
            typer.echo(nodes.failure_line(row))


def _failed(target: Target, name: str) -> list[dict[str, Any]]:
    """Return the replicas that are offline alone; [] if no node responds to this host, and for Apache Kafka, where a
    replica is offline only with its log directory.
    """
    if target.apache_kafka:
        return []
    try:
        return nodes.offline_replicas(target, name)
    except OpsError as error:
        output.say(f"cannot read which files failed: {error}")
        return []


@app.command()
def delete(name: Name, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Delete a topic and its records."""
    with KafkaAdmin(resolve(data, bootstrap).need_kafka()) as admin:
        admin.delete_topic(name)
    if json:
        output.print_json({"name": name, "deleted": True})
    else:
        typer.echo(f"deleted topic {name}")


def parse_configs(pairs: list[str]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping. Raises `UsageError` for anything else."""
    configs: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--config {pair!r} is not of the form NAME=VALUE, for example retention.ms=3600000")
        configs[key.strip()] = value.strip()
    return configs
