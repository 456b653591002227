"""Determine the effective value of a config and its source: topic, one broker, all brokers, server.properties, default.

As in Apache Kafka, a value set for one broker takes precedence over one set for all, both over server.properties, and
of the synonyms (log.retention.ms, .minutes, .hours) the finest that is set on one level counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from storage_node.config.keys import IGNORED
from storage_node.config.rules import BadValue, Kind, read, written
from storage_node.config.table import BROKER, TOPIC, Key, Scope, factor


class Source(IntEnum):
    """The source of a value, as DescribeConfigs encodes it."""

    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


#: A type that DescribeConfigs has no name for: of an unknown key.
UNKNOWN_TYPE = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the values that a config has; the first of several is effective. None: hidden, as it may be a secret."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """A config as DescribeConfigs returns it."""

    name: str
    value: str | None
    source: Source
    kind: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[Setting, ...]


_GROUPS = tuple(key.synonyms for key in TOPIC.values() if len(key.synonyms) > 1)


def same(name: str) -> tuple[str, ...]:
    """Return the broker keys that are synonyms of this one, the finest first; only this one for most."""
    for group in _GROUPS:
        # The scheduler's interval is only a fallback of flush.ms, not a synonym.
        if name == group[0] or (name in group and group[0] != "log.flush.interval.ms"):
            return group
    return (name,)


@dataclass(frozen=True, slots=True)
class BrokerValues:
    """The values set for a broker: its own, those of all brokers, and those in server.properties."""

    own: Mapping[str, str]
    default: Mapping[str, str]
    static: Mapping[str, str]

    def settings(self, name: str) -> tuple[Setting, ...]:
        """Return all values that apply to `name`, the effective one first: what DescribeConfigs calls synonyms.

        As in Kafka, they begin with the key's own name: log.retention.hours alone is not a synonym of log.retention.ms.
        """
        levels = ((self.own, Source.BROKER), (self.default, Source.DEFAULT_BROKER), (self.static, Source.STATIC_BROKER))
        names = same(name)
        found = [Setting(each, level[each], source) for level, source in levels for each in names if each in level]
        for each in names:
            key = BROKER.get(each)
            # A rate is not a config of the broker's own, and has no default among them.
            if key is not None and key.default is not None and key.scope is not Scope.RATE:
                found.append(Setting(each, key.default, Source.DEFAULT))
        while found and found[0].name != name:
            del found[0]
        return tuple(found)

    def effective(self) -> dict[str, str]:
        """Return what is set, by name: a level's value replaces all of its synonyms on lower levels."""
        held = dict(self.static)
        for level in (self.default, self.own):
            for name, value in level.items():
                if name in BROKER and not _fits(BROKER[name], value):
                    continue  # set by a controller that is newer than this node
                for each in same(name):
                    held.pop(each, None)
                held[name] = value
        return held

    def number(self, name: str) -> int:
        """Return the effective whole number of a broker config."""
        return int(self.effective().get(name) or BROKER[name].default or 0)

    def log_values(self) -> dict[str, str]:
        """Return the topic configs of a topic without any of its own, in Kafka's plain form."""
        effective = self.effective()
        return {key.name: _log_value(key, effective) for key in TOPIC.values()}

    def origin(self, key: Key) -> Source:
        """Return the level from which `log_values` takes a topic config."""
        levels = ((self.own, Source.BROKER), (self.default, Source.DEFAULT_BROKER), (self.static, Source.STATIC_BROKER))
        for level, source in levels:
            if any(name in level for name in key.synonyms):
                return source
        return Source.DEFAULT


def _log_value(key: Key, effective: Mapping[str, str]) -> str:
    for name in key.synonyms:
        if name not in effective:
            continue
        value = read(name, effective[name], BROKER[name].kind)
        if factor(name) > 1 or len(key.synonyms) > 1:
            assert isinstance(value, int)
            return str(value * factor(name) if value >= 0 else -1)
        return written(value)
    assert key.default is not None
    return key.default


def _fits(key: Key, text: str) -> bool:
    try:
        check(key, text)
    except BadValue:
        return False
    return True


def check(key: Key, text: str) -> None:
    """Raise BadValue, with Kafka's message or this node's reason, for a value that is not valid for the config."""
    value = read(key.name, text, key.kind)
    if key.rule is not None:
        key.rule.check(key.name, value)
    if key.only:
        for item in (value or ("",)) if isinstance(value, tuple) else (written(value),):
            if item not in key.only:
                raise BadValue(key.name, item, f"{key.why}; give {' or '.join(key.only)}")


def describe_topic(configs: Mapping[str, str], broker: BrokerValues) -> Iterator[Described]:
    """Yield all configs of a topic."""
    inherited = broker.log_values()
    for key in TOPIC.values():
        found = broker.settings(key.synonyms[0]) if key.synonyms else ()
        value = inherited[key.name]
        if key.name in configs:
            value = plain(key, configs[key.name])
            found = (Setting(key.name, value, Source.TOPIC), *found)
        yield Described(key.name, value, _source(found), key.kind, False, False, found)


def topic_values(configs: Mapping[str, str], broker: BrokerValues) -> Iterator[Described]:
    """Yield all configs of a topic as CreateTopics returns them: without synonyms, with the level of each."""
    inherited = broker.log_values()
    for key in TOPIC.values():
        if key.name in configs:
            value, source = plain(key, configs[key.name]), Source.TOPIC
        else:
            value, source = inherited[key.name], broker.origin(key)
        yield Described(key.name, value, source, key.kind, False, False, ())


def describe_broker(broker: BrokerValues) -> Iterator[Described]:
    """Yield all configs of a broker; those outside the fixed list only where they are set."""
    effective = broker.effective()
    always = (name for name, key in BROKER.items() if key.scope is not Scope.RATE)
    for name in dict.fromkeys([*always, *effective, *broker.own, *broker.default]):
        yield _broker_row(name, effective.get(name), broker.settings(name))


def describe_default(broker: BrokerValues) -> Iterator[Described]:
    """Yield the configs that are set for all brokers."""
    for name, value in broker.default.items():
        found = tuple(one for one in broker.settings(name) if one.source is Source.DEFAULT_BROKER)
        yield _broker_row(name, value, found)


def _broker_row(name: str, value: str | None, found: tuple[Setting, ...]) -> Described:
    key = BROKER.get(name)
    if key is not None:
        held = value if value is not None else key.default
        value = held if held is None else plain(key, held)
        read_only = key.scope is Scope.READ_ONLY
        return Described(name, value, _source(found), key.kind, read_only, False, found)
    if name in IGNORED:
        return Described(name, value, _source(found), Kind.STRING, True, False, found)
    hidden = tuple(Setting(one.name, None, one.source) for one in found)
    return Described(name, None, _source(found), UNKNOWN_TYPE, True, True, hidden)


def plain(key: Key, text: str) -> str:
    """Return a value in its plainest form, as Kafka shows it; a text that is not valid unchanged."""
    try:
        return written(read(key.name, text, key.kind))
    except BadValue:
        return text


def _source(found: Iterable[Setting]) -> Source:
    return next((one.source for one in found), Source.DEFAULT)
