"""Why a run does not hear of a node: dead, cut off or fenced. Pure.

The controller knows what came of the last question that it asked the node itself, before it fenced it or left it
registered. A run that misses a node asks the controller (`locate`), which responds with these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from workflows.model.calls import ProbeResult
from workflows.model.state import ClusterState


class Probe(StrEnum):
    """What came of asking a node for its incarnation."""

    SAME = "same"  # the registered incarnation answered
    OTHER = "other"  # another one did: the node was started again, and has not registered yet
    REFUSED = "refused"  # its machine refused the connection: no process listens there
    SILENT = "silent"  # nothing came back in time


class Absence(StrEnum):
    """Why a node is not heard of, as rows and `progress` have it."""

    DEAD = "dead"  # its process has ended
    CUT_OFF = "cut_off"  # it may run: the controller, or Temporal's server, does not reach it or is not reached by it
    FENCED = "fenced"  # the controller does not take it as alive, for another reason or for one that it forgot
    AWAY = "away"  # nobody has said why


def judge(answer: Mapping[str, Any]) -> Absence:
    """Why a node is absent, by the controller's answer to `locate`."""
    fenced, probe = bool(answer.get("fenced")), answer.get("probe")
    if fenced and probe == Probe.REFUSED:
        return Absence.DEAD
    if fenced:
        return Absence.CUT_OFF if probe == Probe.SILENT else Absence.FENCED
    return Absence.CUT_OFF if answer.get("fenced") is not None else Absence.AWAY


def sentence(absence: str, node: str) -> str:
    """What is wrong with a node ("node 3") that is missed."""
    match absence:
        case Absence.DEAD:
            return f"{node} is dead: its address refuses connections, and the controller has fenced it"
        case Absence.CUT_OFF:
            return f"{node} is cut off, or its machine is down: it takes no work from Temporal"
        case Absence.FENCED:
            return f"{node} is fenced: the controller does not take it as alive until it registers again"
    return f"{node} is away, and the controller has not said why yet"


class Missed:
    """A node that a run misses: since when (epoch s), and why as far as the controller has said."""

    def __init__(self) -> None:
        self._since = 0.0
        self.absence = Absence.AWAY

    @property
    def now(self) -> bool:
        """Whether it is missed."""
        return self._since > 0

    @property
    def certain(self) -> bool:
        """Whether asking again would tell nothing new: a fenced node comes back by registering."""
        return self.absence in (Absence.DEAD, Absence.FENCED)

    def begin(self, since: float) -> None:
        """It has not been heard of since then."""
        self._since, self.absence = since, Absence.AWAY

    def told(self, answer: Mapping[str, Any]) -> None:
        """The controller has answered `locate`."""
        if self.now:
            self.absence = judge(answer)

    def end(self, now: float) -> dict[str, float]:
        """It is heard of again: the seconds without it, by why."""
        seconds, self._since = max(0.0, now - self._since), 0.0
        absence, self.absence = self.absence, Absence.AWAY
        return {str(absence): round(seconds, 3)}


class Probes:
    """What came of the last question to each node, by its registered incarnation."""

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        self._last = {int(node): (str(incarnation), Probe(probe)) for node, incarnation, probe in rows}

    def rows(self, state: ClusterState | None) -> list[list[Any]]:
        """What a continue-as-new carries: what is known of the nodes that are fenced."""
        nodes = state.nodes if state is not None else {}
        return [[node, *self._last[node]] for node in sorted(self._last) if node in nodes and nodes[node].fenced]

    def note(self, node: int, incarnation: str, result: ProbeResult) -> None:
        """A question about a registered incarnation was answered, or not."""
        if result.incarnation:
            probe = Probe.SAME if result.incarnation == incarnation else Probe.OTHER
        else:
            probe = Probe.REFUSED if result.refused else Probe.SILENT
        self._last[node] = incarnation, probe

    def answer(self, node: int, state: ClusterState | None) -> dict[str, Any]:
        """What `locate` tells of a node beside whether it is known; the probe only of a node that is fenced, which is
        what a continue-as-new carries.
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
        found = ((node, self.answer(node, state)) for node in sorted(set(nodes)))
        return [[node, str(judge(answer))] for node, answer in found if answer.get("fenced")]
