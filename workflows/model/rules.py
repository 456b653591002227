"""Which version of the rules a run of the controller decides by.

A replay of the controller decides anew all that its run has decided, with the code of today; Temporal compares the
commands that follow from it, not the metadata. A change of what is decided (where replicas go, who leads) would
therefore give a run that is under way another past, under versions that nodes have already applied. So each run decides
by one version of the rules from its start to its end: it stands in the run's parameter, `ClusterState.rules` carries it
to whoever decides, and a run that continues as new gives the next one the newest that its worker knows.

To change a rule that was released: raise RULES, say here what changed, and decide by the old one where `state.rules` is
lower. Of a rule that was not released yet only the histories are recorded anew. tests/workflows/test_replay.py notices
every change, and says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: The newest rules. 1: as they began.
RULES: Final = 1
#: The newest rules that a release has; 0 before the first. Their histories and what these end in never change.
RELEASED: Final = 0
#: The oldest rules that this program still knows; a run by older ones needs an older program to continue as new.
OLDEST: Final = 1
#: What a run decides by whose parameter names no rules, as one that was started by hand.
FIRST: Final = 1


def of_run(parameter: Any) -> int:
    """The rules of a run with this parameter. Raises ValueError for rules that this program does not know."""
    found = parameter.get("rules", FIRST) if isinstance(parameter, Mapping) else FIRST
    if type(found) is not int or not OLDEST <= found <= RULES:
        raise ValueError(
            f"the run decides by version {found!r} of the rules, this program knows {OLDEST} to {RULES}: run the "
            "controller of a version that knows it"
        )
    return found
