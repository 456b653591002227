"""Why a node does not report to a run: dead, cut off or fenced. Pure.

The controller knows the result of the last probe that it sent to the node, before it fenced it or left it registered. A
run that misses a node signals the controller (`locate`), which responds with these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from storage_node.model.moves import StallReason
from workflows.model.calls import ProbeResult
from workflows.model.metadata.state import ClusterState


class Probe(StrEnum):
    """The result of requesting a node's incarnation."""

    SAME = "same"  # the registered incarnation responded
    OTHER = "other"  # another one did: the node was restarted, and has not registered yet
    REFUSED = "refused"  # its machine refused the connection: no process listens at the address
    SILENT = "silent"  # no response in time


def judge(response: Mapping[str, Any]) -> StallReason:
    """Return why a node is absent, by the controller's response to `locate`."""
    fenced, probe = bool(response.get("fenced")), response.get("probe")
    if fenced and probe == Probe.REFUSED:
        return StallReason.DEAD
    if fenced:
        return StallReason.CUT_OFF if probe == Probe.SILENT else StallReason.FENCED
    return StallReason.CUT_OFF if response.get("fenced") is not None else StallReason.UNAVAILABLE


def sentence(absence: str, node: str) -> str:
    """Return what is wrong with a node ("node 3") that a run misses."""
    match absence:
        case StallReason.DEAD:
            return f"{node} is dead: its address refuses connections, and the controller has fenced it"
        case StallReason.CUT_OFF:
            return f"{node} is cut off, or its machine is down: it takes no work from Temporal"
        case StallReason.FENCED:
            return f"{node} is fenced until it registers again"
    return f"{node} is unavailable, and the controller has not reported why yet"


class Missed:
    """A node that a run misses: since when (epoch s), and why as far as the controller has reported it."""

    def __init__(self) -> None:
        self._since = 0.0
        self.absence = StallReason.UNAVAILABLE

    @property
    def now(self) -> bool:
        """Return whether the run misses the node."""
        return self._since > 0

    @property
    def certain(self) -> bool:
        """Return whether another request would return the same reason: a fenced node first has to register again."""
        return self.absence in (StallReason.DEAD, StallReason.FENCED)

    def begin(self, since: float) -> None:
        """Note that the node has not reported since then."""
        self._since, self.absence = since, StallReason.UNAVAILABLE

    def learn(self, response: Mapping[str, Any]) -> None:
        """Note the reason in the controller's response to `locate`."""
        if self.now:
            self.absence = judge(response)

    def end(self, now: float) -> dict[str, float]:
        """Note that the node reports again; return the seconds without it by reason."""
        seconds, self._since = max(0.0, now - self._since), 0.0
        absence, self.absence = self.absence, StallReason.UNAVAILABLE
        return {str(absence): round(seconds, 3)}


class Probes:
    """The result of the last probe of each node, by its registered incarnation."""

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        self._last = {int(node): (str(incarnation), Probe(probe)) for node, incarnation, probe in rows}

    def rows(self, state: ClusterState | None) -> list[list[Any]]:
        """Return what a continue-as-new carries: the probes of fenced nodes."""
        nodes = state.nodes if state is not None else {}
        return [[node, *self._last[node]] for node in sorted(self._last) if node in nodes and nodes[node].fenced]

    def note(self, node: int, incarnation: str, result: ProbeResult) -> None:
        """Note the result of a probe for a registered incarnation."""
        if result.incarnation:
            probe = Probe.SAME if result.incarnation == incarnation else Probe.OTHER
        else:
            probe = Probe.REFUSED if result.refused else Probe.SILENT
        self._last[node] = incarnation, probe

    def state_of(self, node: int, state: ClusterState | None) -> dict[str, Any]:
        """Return the fields "fenced" and "probe" of the response to `locate`; the probe only of a fenced node, since a
        continue-as-new carries no others.
        """
        known = state.nodes.get(node) if state is not None else None
        if known is None:
            return {}
        incarnation, probe = self._last.get(node, ("", ""))
        return {
            "fenced": known.fenced,
            "probe": str(probe) if known.fenced and incarnation == known.incarnation else "",
        }

    def absent(self, nodes: Iterable[int], state: ClusterState | None) -> list[list[Any]]:
        """Return [node, absence] of those of these nodes that are fenced."""
        found = ((node, self.state_of(node, state)) for node in sorted(set(nodes)))
        return [[node, str(judge(response))] for node, response in found if response.get("fenced")]
