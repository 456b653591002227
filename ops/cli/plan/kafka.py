"""A Kafka cluster as the commands of plans reach it: through the admin API alone, with Kafka's own client settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from activities.kafka_admin import client_config
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import AdminError, NoResponse
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from ops.cli import waits
from ops.cli.target import Target
from ops.stack.errors import Refused, ResponseTimeout, UsageError
from workflows.model.plans.values import ClusterView

T = TypeVar("T")

CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", help="Kafka's client.properties, for TLS and SASL.", dir_okay=False)
]


def settings_of(target: Target, command_config: Path | None) -> ClientConfig:
    """Return the settings of the client: of the file, or the target's bootstrap servers. Raises `OpsError`."""
    try:
        if command_config is not None:
            return client_config.read(command_config, target.bootstrap)
        return client_config.of({"bootstrap.servers": target.need_kafka()})
    except AdminError as error:
        raise UsageError(str(error)) from error


def with_pool(config: ClientConfig, work: Callable[[AdminPool], Awaitable[T]]) -> T:
    """Run `work` with admin clients, which are closed afterwards. Raises `Refused`, or `ResponseTimeout`."""

    async def call() -> T:
        pool = AdminPool(config)
        try:
            return await work(pool)
        except NoResponse as error:
            raise ResponseTimeout(str(error), where=config.bootstrap) from error
        except AdminError as error:
            raise Refused(str(error), where=config.bootstrap) from error
        finally:
            await pool.close()

    with waits.lines(f"waiting for the brokers at {config.bootstrap}"):
        return asyncio.run(call())


def view_of(config: ClientConfig) -> ClusterView:
    """Return the cluster as its admin API describes it now. Raises `OpsError`."""
    return with_pool(config, lambda pool: ClusterReader(pool).view())
