"""The id of a Kafka cluster, for a worker that was not told the cluster's name."""

from __future__ import annotations

import asyncio
import logging

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import NoResponse

log = logging.getLogger(__name__)

LONGEST_PAUSE = 10.0  # seconds between two attempts


async def cluster_id_of(config: ClientConfig) -> str:
    """Return the cluster's id, however long no broker responds. Raises `AdminError` if the cluster rejects the client.

    It is requested on a thread of its own, which a cancel does not wait for.
    """
    pause = 1.0
    while True:
        try:
            return await asyncio.to_thread(_read, config)
        except NoResponse as error:
            log.warning("%s; trying again", error)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)


def _read(config: ClientConfig) -> str:
    with KafkaAdmin(config) as admin:
        return admin.cluster()[0]
