"""The directory ids that meta.properties list and that no log directory of the node has, for operators.

Such a directory was taken out of log.dirs, is not mounted, or its disk got another id. It may hold no replica, so that
nothing else shows it; until it is forgotten, the node decides nothing that its content could contradict.
"""

from __future__ import annotations

from typing import Any

from storage_node.directories.manager import DirectoryManager
from storage_node.lifecycle.directory_history import DirectoryHistory

__all__ = ["rows"]


def rows(dirs: DirectoryManager, history: DirectoryHistory, node: int) -> list[dict[str, Any]]:
    """Return a row per id as JSON; `path` and `since` are what the history of the directories knows of it.

    `listed_by` are the directories whose meta.properties list it: every start, and every change, writes all ids to
    those that are online. `may_be` are offline directories whose own id could not be read.
    """
    online = [directory.name for directory in dirs.online()]
    unread = [directory.name for directory in dirs.directories if not directory.id]
    found = []
    for each in sorted(dirs.unused_ids()):
        last = history.last_of(each)
        found.append(
            {
                "id": each,
                "path": last.path if last is not None else "",
                "since": last.time if last is not None else None,
                "listed_by": online,
                "may_be": unread,
                "forget": f"rehome dirs forget {node} {each}",
            }
        )
    return found
