"""The table of attacks, in execution order."""

from __future__ import annotations

from ops.bench.hostile.attack import Attack
from ops.bench.hostile.on_admin import ADMIN
from ops.bench.hostile.on_connections import CONNECTIONS
from ops.bench.hostile.on_groups import GROUPS
from ops.bench.hostile.on_records import RECORDS

ATTACKS: tuple[Attack, ...] = (*CONNECTIONS, *RECORDS, *GROUPS, *ADMIN)
