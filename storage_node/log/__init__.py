"""The log of a partition: Kafka's on-disk formats, appends, reads, recovery."""

from storage_node.log.batches.batch import BatchHeader, build_batch, headers, verify
from storage_node.log.config import LogConfig
from storage_node.log.log import Appended, FetchedData, Log, LogClosed, UnexpectedAppendOffset

__all__ = [
    "Appended",
    "BatchHeader",
    "FetchedData",
    "Log",
    "LogClosed",
    "LogConfig",
    "UnexpectedAppendOffset",
    "build_batch",
    "headers",
    "verify",
]
