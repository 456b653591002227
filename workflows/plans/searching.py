"""Search attributes of the runs of plans. Without `known`, as on a server that has none of them, nothing is sent.

A server rejects a workflow task that names an attribute it does not know. An activity's result, or the run's parameter,
therefore says whether it does, so that a replay decides as the first run did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from workflows.model import search_attributes
from workflows.model.plans import window
from workflows.model.search_attributes import LONGEST_KEYWORD, capped

_CLUSTER = SearchAttributeKey.for_keyword(search_attributes.CLUSTER)
_TOPICS = SearchAttributeKey.for_keyword_list(search_attributes.TOPICS)
_NODES = SearchAttributeKey.for_keyword_list(search_attributes.NODES)
_PHASE = SearchAttributeKey.for_keyword(search_attributes.PHASE)
_OUTCOME = SearchAttributeKey.for_keyword(search_attributes.OUTCOME)
_DEADLINE = SearchAttributeKey.for_datetime(search_attributes.DEADLINE)


def describe(known: bool, phase: str, cluster: str, topics: Iterable[str], nodes: Iterable[int]) -> None:
    """Send what a run is about, and its phase, in one command."""
    _send(
        known,
        _CLUSTER.value_set(cluster[:LONGEST_KEYWORD]),
        _TOPICS.value_set(capped(topics)),
        _NODES.value_set(capped(map(str, sorted(set(nodes))))),
        _PHASE.value_set(phase),
    )


def enter(known: bool, phase: str) -> None:
    """Send the phase that the run enters."""
    _send(known, _PHASE.value_set(phase))


def deadline(known: bool, text: str) -> None:
    """Send a plan's deadline, "" for none."""
    _send(known, _DEADLINE.value_set(window.instant(text)) if text else _DEADLINE.value_unset())


def end(known: bool, outcome: str) -> None:
    """Send a run's outcome, with the phase "ended"."""
    _send(known, _PHASE.value_set("ended"), _OUTCOME.value_set(outcome))


def _send(known: bool, *updates: SearchAttributeUpdate[Any]) -> None:
    if known:
        workflow.upsert_search_attributes(updates)
