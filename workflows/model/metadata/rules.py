"""The version of the rules by which a run of the controller decides.

A replay of the controller repeats every decision of its run with the current code; Temporal compares the commands that
follow from it, not the metadata. A changed decision (which nodes get replicas, which replica leads) would therefore
give an open run another past, under versions that nodes have already applied. So each run decides by one version of the
rules from its start to its end: its parameter names the version, `ClusterState.rules` carries it to the code that
decides, and a run that continues as new gives the next one the newest that its worker knows.

To change a released rule: raise RULES, note here what changed, and decide by the old one where `state.rules` is lower.
For a rule that was not released yet only record the histories again. tests/workflows/test_replay.py detects every
change, and names the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: The newest rules. 1: the first ones.
RULES: Final = 1
#: The newest rules that a release has; 0 before the first. Their golden histories, and the final states, never change.
RELEASED: Final = 0
#: The oldest rules that this program still knows; a run by older ones needs an older program to continue as new.
OLDEST: Final = 1
#: The rules of a run whose parameter names none, such as one that was started by hand.
FIRST: Final = 1


def of_run(parameter: Any) -> int:
    """Return the rules of a run with this parameter. Raises ValueError for rules that this program does not know."""
    found = parameter.get("rules", FIRST) if isinstance(parameter, Mapping) else FIRST
    if type(found) is not int or not OLDEST <= found <= RULES:
        raise ValueError(
            f"the run decides by version {found!r} of the rules, this program knows {OLDEST} to {RULES}: run a "
            "controller that knows it"
        )
    return found
