"""How the plans of one cluster share the slots of disks, nodes and the cluster, by priority. Pure.

A lane uses slots, each with a key: a disk "1:/disk/a", a node "1", the cluster "". A plan limits how many lanes of all
plans use a key at the same time. Among plans that want the same slot, the one with the higher rank gets it: its
priority, raised by `RAISE` for each `AGE` seconds of its oldest wait, so that none waits for ever; among equals the one
that has waited longer. A plan has one rank for all slots: no two plans leave a slot for each other.

A slot is left for a plan of a higher rank that waits for it, if that plan could begin a lane with it at once. If other
slots of the lane are taken, slots are left for it only in its turn, so that they come together: one plan has a turn at
a time, for `TURN` seconds, and until `AGE` seconds have passed there is none. So a slot that a ready lane may use is
never idle for long.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans.options import HIGHEST_PRIORITY
from workflows.model.plans.running import packing
from workflows.model.plans.running.keeper_results import (
    LaneSlots,
    PlanShare,
    SlotGrant,
    SlotKeeperProgress,
    SlotWait,
)
from workflows.model.plans.running.lane_request import workflow_id

#: What a plan's rank rises by for so many seconds of waiting: a plan of priority 0 outranks one of 100 after two hours.
RAISE, AGE = 25, 1_800.0
#: Seconds after which a plan that has not repeated its request waits no longer: it repeats it every half minute.
WAITS_FOR = 120.0
#: Seconds for which slots are left for a plan that cannot use them yet.
TURN = 600.0
_LARGEST_LANES = 10_000
_LONGEST_KEY = 4_200

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What a plan requests: `running` are its open lanes, and `wanted` those that it would begin, in its order, each
    with its keys; `limits` are the slots of keys that have a limit. `more`: beside its request of just before.
    `ended` are holders whose runs have ended.
    """

    holder: str
    priority: int = 50
    running: Mapping[int, Keys] = field(default_factory=dict)
    wanted: Mapping[int, Keys] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    ended: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the value that `request_of` reads."""
        return {
            "holder": self.holder,
            "priority": self.priority,
            "running": [[number, list(keys)] for number, keys in self.running.items()],
            "wanted": [[number, list(keys)] for number, keys in self.wanted.items()],
            "limits": dict(self.limits),
            "more": self.more,
            "ended": list(self.ended),
        }


@dataclass
class Share:
    """What a plan holds, by lane, and waits for: the lanes it was refused, and by each key of these since when (epoch
    s), and how many slots the plan lets all plans use, 0 for no limit. `turn` is when its last turn began, 0 for never.
    """

    priority: int = 50
    held: dict[int, Keys] = field(default_factory=dict)
    waits: dict[str, tuple[float, int]] = field(default_factory=dict)
    asked: float = 0.0
    refused: dict[int, Keys] = field(default_factory=dict)
    turn: float = 0.0

    def uses(self, key: str) -> int:
        """Return how many lanes use a key."""
        return sum(key in keys for keys in self.held.values())

    def waits_at(self, now: float) -> bool:
        """Return whether the plan still waits: it repeats its request while it does."""
        return now <= self.asked + WAITS_FOR

    def limit(self, key: str) -> int:
        """Return how many slots of a key there are for a plan that waits for it, 0 for no limit."""
        return self.waits[key][1] if key in self.waits else 0

    def rank(self, now: float) -> tuple[float, float]:
        """Return the plan's place among those that want slots: the higher one first."""
        since = min((since for since, _ in self.waits.values()), default=now)
        return self.priority + RAISE * ((now - since) // AGE), -since


@dataclass
class Shares:
    """The shares of all plans of a cluster, by workflow id. `turn` is the plan whose turn began last, "" for none, and
    when.
    """

    plans: dict[str, Share] = field(default_factory=dict)
    woken: dict[str, None] = field(default_factory=dict)
    """The plans that a slot became free for since their last request."""
    turn: tuple[str, float] = ("", 0.0)

    def share(self, request: SlotRequest, now: float) -> SlotGrant:
        """Note what a plan uses, and grant it lanes; what is refused it waits for."""
        for holder in request.ended:
            if holder != request.holder:
                self.release(holder, now)
        mine = self.plans.setdefault(request.holder, Share())
        mine.priority, mine.asked = request.priority, now
        self.woken.pop(request.holder, None)
        counts = {key: mine.uses(key) for keys in mine.held.values() for key in keys}
        if not request.more:
            mine.held, mine.refused = {**request.running}, {}
        wanted = {key for keys in (*mine.refused.values(), *request.wanted.values()) for key in keys}
        mine.waits = {key: each for key, each in mine.waits.items() if key in wanted}
        others = {holder: share for holder, share in self.plans.items() if share is not mine}
        used = self._used()
        self._next_turn(used, now)
        granted: list[int] = []
        blocked: dict[str, None] = {}
        for number, keys in request.wanted.items():
            found = list(self._holding(keys, mine, others, request.limits, used, now))
            if found:
                blocked |= dict.fromkeys(each for each in found if each)
                mine.refused[number] = keys
                continue
            for key in keys:
                mine.waits.pop(key, None)
                used[key] = used.get(key, 0) + 1
            mine.held[number] = keys
            granted.append(number)
        left = dict.fromkeys(key for keys in mine.refused.values() for key in keys)
        limits = {key: request.limits.get(key, mine.limit(key)) for key in left}
        mine.waits = {key: (mine.waits[key][0] if key in mine.waits else now, limits[key]) for key in left}
        if self.turn[0] == request.holder and not any(_others_hold(each, mine, used) for each in mine.refused.values()):
            self.turn = "", 0.0
        taken = _counted(others.values())
        if not mine.held and not mine.refused:
            del self.plans[request.holder]
        self._wake([key for key, count in counts.items() if mine.uses(key) < count], others, now)
        return SlotGrant(granted, taken, list(blocked))

    def release(self, holder: str, now: float) -> None:
        """Note that a plan uses and wants nothing any more."""
        share = self.plans.pop(holder, None)
        self.woken.pop(holder, None)
        if self.turn[0] == holder:
            self.turn = "", 0.0
        if share is not None:
            keys = dict.fromkeys(key for keys in (*share.held.values(), share.waits) for key in keys)
            self._wake(keys, self.plans, now)

    def waits_no_longer(self, holder: str) -> None:
        """Note that a plan's run has ended; its lanes may run on, with their slots."""
        share = self.plans.get(holder)
        if share is not None:
            share.waits, share.refused = {}, {}
            if not share.held:
                del self.plans[holder]

    def _used(self) -> dict[str, int]:
        return _counted(self.plans.values())

    def _wake(self, freed: Collection[str], others: Mapping[str, Share], now: float) -> None:
        """Note for each freed slot the plan that is to have it."""
        used = self._used() if freed else {}
        for key in freed:
            waiting = [
                (share.rank(now), holder)
                for holder, share in others.items()
                if any(key in keys and not _full(keys, share, used) for keys in share.refused.values())
            ]
            if waiting:
                self.woken[max(waiting)[1]] = None

    def _next_turn(self, used: Mapping[str, int], now: float) -> None:
        """Give the turn to the plan whose last one is the longest ago, if no plan has had one for long enough."""
        holder, since = self.turn
        if holder and now < since + AGE:
            return
        waiting = [
            (-share.turn, share.rank(now), each)
            for each, share in self.plans.items()
            if share.waits_at(now) and any(_others_hold(keys, share, used) for keys in share.refused.values())
        ]
        self.turn = "", 0.0
        if waiting:
            _, _, holder = max(waiting)
            self.turn, self.plans[holder].turn = (holder, now), now

    def _holding(
        self,
        keys: Keys,
        mine: Share,
        others: Mapping[str, Share],
        limits: Mapping[str, int],
        used: Mapping[str, int],
        now: float,
    ) -> Iterator[str]:
        """Yield the plans because of which a lane may not begin, "" for the plan itself."""
        for key in keys:
            if key in limits and used.get(key, 0) >= limits[key]:
                yield from (holder for holder, share in others.items() if share.uses(key))
                yield ""
        rank = mine.rank(now)
        for holder, share in others.items():
            if share.waits_at(now) and share.rank(now) > rank:
                turn = self.turn[0] == holder and now < self.turn[1] + TURN
                if any(_left_for(lane, keys, share, used, turn) for lane in share.refused.values()):
                    yield holder

    def as_json(self) -> dict[str, Any]:
        """Return the shares for the run that continues the keeper."""
        return {
            holder: {
                "priority": share.priority,
                "held": [[number, list(keys)] for number, keys in share.held.items()],
                "waits": {key: list(each) for key, each in share.waits.items()},
                "asked": share.asked,
                "refused": [[number, list(keys)] for number, keys in share.refused.items()],
                "turn": share.turn,
            }
            for holder, share in self.plans.items()
        }


def _counted(shares: Iterable[Share]) -> dict[str, int]:
    """Return how many lanes use each key."""
    return dict(Counter(key for share in shares for keys in share.held.values() for key in keys))


def _full(keys: Keys, share: Share, used: Mapping[str, int]) -> list[str]:
    """Return the keys of a refused lane of which its plan has no slot left."""
    return [key for key in keys if share.limit(key) and used.get(key, 0) >= share.limit(key)]


def _others_hold(keys: Keys, share: Share, used: Mapping[str, int]) -> bool:
    """Return whether a refused lane could begin if other plans used less."""
    full = _full(keys, share, used)
    return bool(full) and all(share.uses(key) < share.limit(key) for key in full)


def _left_for(lane: Keys, keys: Keys, share: Share, used: Mapping[str, int], turn: bool) -> bool:
    """Return whether a lane with such keys would take the last slot that is left for a refused lane of a plan."""
    last = any(key in keys and share.limit(key) and used.get(key, 0) + 1 >= share.limit(key) for key in lane)
    return last and (turn or not _full(lane, share, used))


def packed(shares: Shares) -> str:
    """Return the shares for the run that continues the keeper."""
    return packing.pack(json.dumps(shares.as_json()))


def unpacked(value: Any, path: str) -> Shares:
    """Read `packed`. Raises BadField."""
    text = packing.unpack(fields.a_string(value, path))
    try:
        rows = fields.an_object(json.loads(text), path)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadField):
            raise
        raise BadField(path, f"is not JSON: {error}") from error
    plans = {workflow_id(holder, path): _share(row, f"{path}.{holder}") for holder, row in rows.items()}
    since, last = max(((share.turn, holder) for holder, share in plans.items()), default=(0.0, ""))
    return Shares(plans, turn=(last if since else "", since))


def _share(value: Any, path: str) -> Share:
    row = fields.an_object(value, path, ("priority", "held", "waits", "asked", "refused", "turn"))
    waits = {}
    for key, pair in fields.an_object(row.get("waits", {}), f"{path}.waits").items():
        if len(fields.a_list(pair, f"{path}.waits")) != 2:
            raise BadField(f"{path}.waits", "must be times and limits by key")
        waits[key] = (fields.a_measure(pair[0], f"{path}.waits"), fields.a_number(pair[1], f"{path}.waits"))
    return Share(
        fields.a_number(row.get("priority", 50), f"{path}.priority", 0, HIGHEST_PRIORITY),
        _lanes(row.get("held", []), f"{path}.held"),
        waits,
        fields.a_measure(row.get("asked", 0.0), f"{path}.asked"),
        _lanes(row.get("refused", []), f"{path}.refused"),
        fields.a_measure(row.get("turn", 0.0), f"{path}.turn"),
    )


def _lanes(value: Any, path: str) -> dict[int, Keys]:
    rows = fields.a_list(value, path)
    if len(rows) > _LARGEST_LANES:
        raise BadField(path, f"has {len(rows)} lanes, but must have at most {_LARGEST_LANES}")
    found: dict[int, Keys] = {}
    for at, pair in enumerate(rows):
        here = f"{path}[{at}]"
        if len(fields.a_list(pair, here)) != 2:
            raise BadField(here, "must be a lane's number and its keys")
        found[fields.a_number(pair[0], f"{here}[0]")] = tuple(_keys(pair[1], f"{here}[1]"))
    return found


def _keys(value: Any, path: str) -> Iterable[str]:
    for at, each in enumerate(fields.a_list(value, path)):
        key = fields.a_note(each, f"{path}[{at}]")
        if len(key) > _LONGEST_KEY:
            raise BadField(f"{path}[{at}]", f"has {len(key)} characters, but must have at most {_LONGEST_KEY}")
        yield key


def progress_of(shares: Shares, workflow_id: str) -> SlotKeeperProgress:
    """Return what the keeper responds to the query `progress`."""

    def lanes(held: Mapping[int, Keys]) -> list[LaneSlots]:
        return [LaneSlots(number, list(keys)) for number, keys in held.items()]

    return SlotKeeperProgress(
        workflow_id,
        {
            holder: PlanShare(
                share.priority,
                lanes(share.held),
                [SlotWait(key, since, limit) for key, (since, limit) in share.waits.items()],
                share.asked,
                lanes(share.refused),
                share.turn,
            )
            for holder, share in shares.plans.items()
        },
    )


def held_in(progress: SlotKeeperProgress) -> dict[str, list[int]]:
    """Return the lanes that each plan holds by the keeper's response to the query `progress`."""
    return {holder: [each.lane for each in share.held] for holder, share in progress.plans.items()}


def request_of(value: Any) -> SlotRequest:
    """Read the argument of the update `share`. Raises BadField."""
    row = fields.an_object(value, "$", ("holder", "priority", "running", "wanted", "limits", "more", "ended"))
    limits = fields.an_object(row.get("limits", {}), "$.limits")
    ended = enumerate(fields.a_list(row.get("ended", []), "$.ended"))
    return SlotRequest(
        workflow_id(fields.need(row, "holder", "$"), "$.holder"),
        fields.a_number(row.get("priority", 50), "$.priority", 0, HIGHEST_PRIORITY),
        _lanes(row.get("running", []), "$.running"),
        _lanes(row.get("wanted", []), "$.wanted"),
        {key: fields.a_number(each, f"$.limits.{fields.shown(key)}", 1) for key, each in limits.items()},
        fields.a_flag(row.get("more", False), "$.more"),
        tuple(workflow_id(each, f"$.ended[{at}]") for at, each in ended),
    )
