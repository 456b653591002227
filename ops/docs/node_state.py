"""Print the fields of `rehome node` as a page: `python -m ops.docs.node_state > ops/docs/node-state.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    """A field of a response: its type in JSON, and its meaning."""

    type: str
    meaning: str


#: The fields of `rehome node status NODE --json`; those of rows have the list's name before them.
STATUS: Mapping[str, Field] = {
    "node": Field("number", "The node's id."),
    "incarnation": Field("string", "The id of this start of the node."),
    "generation": Field("number", "The cluster generation of the newest image: it outranks all epochs."),
    "version": Field("number", "The version of the newest image; it counts changes within a cluster generation."),
    "metadata.differs": Field("boolean", "Whether the metadata differs from the controller's at the same version."),
    "metadata.differences": Field("number", "How often a difference was found since the start."),
    "metadata.last_difference": Field(
        "object or null", "The last difference: the pair, both digests, or what did not fit."
    ),
    "directories": Field("list", "The log directories in the order of log.dirs, metadata.log.dir first."),
    "directories[].id": Field("string", "The directory id (KIP-858); empty if it could not be read."),
    "directories[].path": Field("string", "The absolute path."),
    "directories[].online": Field("boolean", "Whether its replicas are served."),
    "directories[].failure": Field("string or null", "Why it is offline; null while it is online."),
    "directories[].signs": Field(
        "object",
        "Early signs of a failure, by kind: `errors`, `slow`, `read-only`, `smart`; empty for a healthy disk.",
    ),
    "directories[].evidence": Field("object or null", "What that rests on; null while it is online."),
    "directories[].evidence.verdict": Field("string", "`disk`, `file`, `full`, `read-only` or `hung`."),
    "directories[].evidence.operation": Field("string", "What failed, or did not end by its deadline."),
    "directories[].evidence.path": Field("string", "The file or folder; empty if it is not known."),
    "directories[].evidence.errno": Field("string", "The name of the system's error number; empty for none."),
    "directories[].evidence.time": Field("number", "When, in seconds since the epoch."),
    "missing": Field("list", "The directory ids that meta.properties list and no log directory has."),
    "missing[].id": Field("string", "The directory id."),
    "missing[].path": Field("string", "The path that it had; empty if it is not known."),
    "missing[].since": Field("number or null", "When it was last noticed to be away, in seconds since the epoch."),
    "missing[].listed_by": Field("list", "The log directories whose meta.properties list it."),
    "missing[].may_be": Field("list", "Offline log directories whose own id could not be read: it may be theirs."),
    "missing[].forget": Field("string", "The command that forgets it, once its disk is lost and the node is stopped."),
    "replicas": Field("number", "Replicas that are served."),
    "led": Field("number", "Of these, the ones that this node leads."),
    "under_replicated": Field("number", "Of the led, the ones with a smaller ISR (Kafka: UnderReplicatedPartitions)."),
    "offline": Field("object", "The reason of each offline replica, by topic-partition."),
    "offline_replicas": Field("list", "The same replicas, sorted, with directory and file."),
    "offline_replicas[].topic": Field("string", "The topic."),
    "offline_replicas[].partition": Field("number", "The partition."),
    "offline_replicas[].directory": Field("string", "The log directory that has it; empty if it is not known."),
    "offline_replicas[].file": Field("string", "The file or folder that failed; empty if the whole directory did."),
    "offline_replicas[].reason": Field("string", "Why it is offline."),
    "moves_stopped": Field("boolean", "Whether an operator has stopped all moves (`rehome node stop-moves`)."),
    "moves": Field("number", "Moves that have a `.move`, whether they copy, wait or have failed."),
    "temporal_client.connected": Field("boolean or null", "Whether the node reaches Temporal; null if unknown."),
    "temporal_client.since": Field("string or null", "Since when, in UTC; null if unknown."),
    "temporal_client.address": Field("string", "The address of Temporal's frontend."),
    "temporal_client.namespace": Field("string", "The namespace."),
    "temporal_client.kind": Field("string", "The kind of the problem; empty while it is connected."),
    "temporal_client.reason": Field("string", "The problem in a sentence."),
    "temporal_client.notes": Field("list", "What the operator should know besides."),
    "temporal_client.restarted": Field("list", "Parts of the process that failed and were started again."),
}

#: The fields of `rehome node connections NODE --json`. Times in seconds, sizes in bytes.
CONNECTIONS: Mapping[str, Field] = {
    "node": Field("number", "The node's id."),
    "limits": Field("object", "The configs that limit connections and their memory, by name; -1 without a limit."),
    "open": Field("number", "Open connections."),
    "refused": Field("number", "Connections that were closed at a limit since the start."),
    "closed_idle": Field("number", "Connections that were closed after connections.max.idle.ms since the start."),
    "request_bytes": Field("number", "Bytes of requests that are held now, of queued.max.request.bytes."),
    "request_bytes_highest": Field("number", "The most bytes of requests that were held since the start."),
    "waiting_for_room": Field("number", "Connections that are not read until other requests have ended."),
    "unsent_bytes": Field("number", "Bytes of responses that clients have not read."),
    "connections": Field("list", "The open connections, the oldest first."),
    "connections[].peer": Field("string", "The client's address and port."),
    "connections[].client_id": Field("string", "client.id of its last request."),
    "connections[].software": Field("string", "Name and version of the client's software (KIP-511)."),
    "connections[].age": Field("number", "Seconds since it was opened."),
    "connections[].idle": Field("number", "Seconds since its last request or response; 0 while one is in progress."),
    "connections[].requests": Field("number", "Requests so far."),
    "connections[].bytes_in": Field("number", "Bytes received."),
    "connections[].bytes_out": Field("number", "Bytes sent."),
    "connections[].under_way": Field("string", "The API of the request in progress; empty without one."),
    "connections[].under_way_seconds": Field("number", "Seconds since that request began."),
    "connections[].queued": Field("number", "Received requests behind it."),
    "connections[].request_bytes": Field("number", "Bytes of its requests that are held."),
    "connections[].waits_for_room": Field("boolean", "Whether it is not read until other requests have ended."),
}

_HEAD = """# The state of a node

What `rehome node` returns with `--json`, without Temporal: the fields of `status` and of `connections`. Moves are in
`rehome moves --json`, replicas and sizes in Kafka's own DescribeLogDirs. The page is printed by
`python -m ops.docs.node_state > ops/docs/node-state.md`; a test compares the fields with those of a node.
"""


def page() -> str:
    """Return the whole page."""
    return f"{_HEAD}\n## rehome node status\n\n{_table(STATUS)}\n## rehome node connections\n\n{_table(CONNECTIONS)}"


def _table(fields: Mapping[str, Field]) -> str:
    rows = (f"| `{name}` | {field.type} | {field.meaning} |" for name, field in fields.items())
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
