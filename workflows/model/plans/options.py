"""How a plan is carried out: throttles, slots, lanes, order, and who must approve it. Strictly read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as fields_of
from enum import StrEnum
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.move import parameter as move_parameter
from workflows.model.plans import window
from workflows.model.plans.adaptive import BROKERS, DIRECTORIES, Bounds, read_bounds
from workflows.model.plans.problems import Problems
from workflows.model.plans.window import RateByHour

#: The maximum of any number of slots, and of the moves of a lane.
MAX_SLOTS = 10_000
MAX_LANE_MOVES = 1_000
HIGHEST_PRIORITY = 100
_LONGEST_WEBHOOK = 64


class OrderRule(StrEnum):
    """A rule of the order in which lanes begin; an earlier rule of a plan's list outweighs all later ones."""

    DRAIN_FIRST = "drain_first"
    """Replicas of directories that the plan empties."""
    UNDER_REPLICATED_FIRST = "under_replicated_first"
    """Partitions with a replica out of the ISR."""
    LEADERS_LAST = "leaders_last"
    """Moves of the leader's replica, and those after which another broker leads."""
    SMALL_FIRST = "small_first"
    LARGE_FIRST = "large_first"


DEFAULT_ORDER = (
    OrderRule.DRAIN_FIRST,
    OrderRule.UNDER_REPLICATED_FIRST,
    OrderRule.LEADERS_LAST,
    OrderRule.SMALL_FIRST,
)


class Approval(StrEnum):
    """Whether a plan waits for approval before its first move, and from how many persons."""

    NONE = "none"
    REQUIRED = "required"
    TWO_PERSONS = "two_persons"


class OnDrift(StrEnum):
    """What a plan does when the cluster has changed much since the plan was checked."""

    APPROVAL = "approval"
    """It begins no further lane until it is approved again."""
    CONTINUE = "continue"
    """It continues, and shows what has changed."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of a plan. None: not limited."""

    throttle_between_brokers: int | None = None
    """Bytes/s of each broker, for replicas that move between brokers (KIP-73)."""
    throttle_between_directories: int | None = None
    """Bytes/s of each broker, for replicas that move between its directories (KIP-113)."""
    slots_per_disk: int = 1
    """Lanes that read from or write to one directory at the same time."""
    slots_per_broker: int | None = None
    slots_cluster: int | None = None
    lane_moves: int = 50
    lane_bytes: int = 1 << 30
    """A lane of several moves copies at most this many bytes; a bigger move is a lane of its own."""
    order: tuple[OrderRule, ...] = DEFAULT_ORDER
    priority: int = 50
    """0 to 100: of two plans that want the same slot, the one with the higher priority gets it."""
    calendar_between_brokers: tuple[RateByHour, ...] = ()
    """Throttles by the hour: the first one whose window is open takes the place of `throttle_between_brokers`."""
    calendar_between_directories: tuple[RateByHour, ...] = ()
    adaptive_between_brokers: Bounds | None = None
    """Follow the cluster's health within these bounds; a throttle or calendar beside it is a further upper bound."""
    adaptive_between_directories: Bounds | None = None
    window: str = ""
    """When lanes may begin, as "Mon-Fri 22:00-06:00 Europe/Berlin"; "" is always."""
    deadline: str = ""
    """When the plan should have ended, an ISO 8601 timestamp with a zone; "" is no deadline."""
    approval: Approval = Approval.NONE
    on_drift: OnDrift | None = None
    """None: a plan that was to be approved waits for it again, another one continues."""
    alerts: str = ""
    """The name of a webhook in the worker's --alerts file; "" sends none."""
    verify: bool = True
    health_gate: bool = True
    """Begin no lane while partitions outside the plan are under-replicated or any is under min.insync.replicas."""
    directories_only: bool = False
    """Refuse a plan that, when it is checked, would change the replicas of a partition or their order."""

    @property
    def throttled_between_brokers(self) -> bool:
        """Return whether a throttle between brokers holds at any hour, so that moved replicas must be listed."""
        named = (self.throttle_between_brokers, self.adaptive_between_brokers)
        return any(each is not None for each in named) or bool(self.calendar_between_brokers)

    @property
    def throttled(self) -> bool:
        """Return whether a throttle of either kind holds at any hour."""
        named = (self.throttle_between_directories, self.adaptive_between_directories)
        held = self.throttled_between_brokers or any(each is not None for each in named)
        return held or bool(self.calendar_between_directories)

    @property
    def adaptive(self) -> dict[str, Bounds]:
        """Return the bounds of the throttles that follow the cluster's health, by path."""
        found = {BROKERS: self.adaptive_between_brokers, DIRECTORIES: self.adaptive_between_directories}
        return {path: bounds for path, bounds in found.items() if bounds is not None}

    @property
    def waits_on_drift(self) -> bool:
        """Return whether a large change of the cluster has to be approved."""
        chosen = self.on_drift
        return self.approval != Approval.NONE if chosen is None else chosen == OnDrift.APPROVAL

    def as_json(self) -> dict[str, Any]:
        """Return all options as JSON values, which `read` accepts."""
        held = {each.name: getattr(self, each.name) for each in fields_of(self)}
        return held | {
            "order": [str(rule) for rule in self.order],
            "approval": str(self.approval),
            "on_drift": None if self.on_drift is None else str(self.on_drift),
            "adaptive_between_brokers": _json(self.adaptive_between_brokers),
            "adaptive_between_directories": _json(self.adaptive_between_directories),
            "calendar_between_brokers": [each.as_json() for each in self.calendar_between_brokers],
            "calendar_between_directories": [each.as_json() for each in self.calendar_between_directories],
        }


def _json(bounds: Bounds | None) -> dict[str, Any] | None:
    return None if bounds is None else bounds.as_json()


def webhook_name(value: Any, path: str) -> str:
    """Read the name of a webhook: it is in histories, so it must not be a URL. Raises BadField."""
    name = fields.a_string(value, path, empty=True)
    if name and not (name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()):
        raise BadField(
            path,
            "must be the name of a webhook in the worker's --alerts file (letters, digits, '.', '_', '-'), never a URL",
        )
    if len(name) > _LONGEST_WEBHOOK:
        raise BadField(path, f"has {len(name)} characters, but must have at most {_LONGEST_WEBHOOK}")
    return name


def read(value: Any, path: str = "$.options") -> PlanOptions:
    """Read the object "options" of a plan. A null is the default. Raises PlanProblems with every mistake."""
    problems = Problems()
    row = problems.object(value, path, tuple(_READERS))
    held: dict[str, Any] = {}
    for name, reader in _READERS.items():
        if row.get(name) is not None:
            held[name] = problems.read(reader, row[name], f"{path}.{name}")
    problems.finish()
    return PlanOptions(**held)


def _slots(value: Any, path: str) -> int:
    return fields.a_number(value, path, 1, MAX_SLOTS)


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise BadField(path, f"must be true or false, not {fields.told(value)}")
    return value


def _order(value: Any, path: str) -> tuple[OrderRule, ...]:
    problems, rules = Problems(), []
    for at, each in enumerate(fields.a_list(value, path)):
        rule = problems.read(_one_of, OrderRule, each, f"{path}[{at}]")
        if rule in rules:
            problems.add(f"{path}[{at}]", f"is {rule} again")
        if rule is not None:
            rules.append(OrderRule(rule))
    if OrderRule.SMALL_FIRST in rules and OrderRule.LARGE_FIRST in rules:
        problems.add(path, "has both small_first and large_first: remove one")
    problems.finish()
    return tuple(rules)


def _one_of(kind: type[StrEnum], value: Any, path: str) -> str:
    text = fields.a_string(value, path)
    if text not in list(kind):
        raise BadField(path, f"is '{text}', but must be one of {', '.join(kind)}")
    return text


def _approval(value: Any, path: str) -> Approval:
    return Approval(_one_of(Approval, value, path))


def _window(value: Any, path: str) -> str:
    return window.parse(value, path).text


def _deadline(value: Any, path: str) -> str:
    if value != "":
        window.instant(value, path)
    return str(value)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "throttle_between_brokers": move_parameter.size,
    "throttle_between_directories": move_parameter.size,
    "slots_per_disk": _slots,
    "slots_per_broker": _slots,
    "slots_cluster": _slots,
    "lane_moves": lambda value, path: fields.a_number(value, path, 1, MAX_LANE_MOVES),
    "lane_bytes": move_parameter.size,
    "order": _order,
    "priority": lambda value, path: fields.a_number(value, path, 0, HIGHEST_PRIORITY),
    "calendar_between_brokers": window.read_rates,
    "calendar_between_directories": window.read_rates,
    "adaptive_between_brokers": read_bounds,
    "adaptive_between_directories": read_bounds,
    "window": _window,
    "deadline": _deadline,
    "approval": _approval,
    "on_drift": lambda value, path: OnDrift(_one_of(OnDrift, value, path)),
    "alerts": webhook_name,
    "verify": _flag,
    "health_gate": _flag,
    "directories_only": _flag,
}
