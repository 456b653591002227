"""The table of attacks, and the verdict on an attack's cost."""

from __future__ import annotations

import dataclasses

import pytest

from ops.bench.hostile import batches, well_behaved
from ops.bench.hostile.attack import Attack, allowed
from ops.bench.hostile.attacks import ATTACKS
from ops.bench.hostile.bench import words
from ops.bench.hostile.field import NONE, errors
from ops.bench.hostile.on_records import UNREADABLE
from ops.bench.hostile.siege import MIB, Cost, Limits
from ops.bench.hostile.well_behaved import Sample
from storage_node.log.admission import inspect, takes_long
from storage_node.log.batches.batch import parse, problem, verify
from storage_node.log.config import LogConfig
from storage_node.wire.codec import read_response, write_response

ATTACK = Attack("a", "attacks", lambda field: None, allowed("INVALID_RECORD"))
HARMLESS = Cost(ATTACK, {"INVALID_RECORD": 7}, p99=0.1, worst=0.2)


def test_attacks_have_names_of_their_own_and_expected_outcomes() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(attack.outcomes for attack in ATTACKS)


def test_every_unreadable_batch_has_the_outcome_it_has_on_apache_kafka() -> None:
    assert batches.unreadable().keys() == UNREADABLE.keys()


@pytest.mark.parametrize("name", ["dense", "bomb", "backlog", "header_flood", "tiny_blocks", "heavy_garbage"])
def test_valid_batches_are_valid(name: str) -> None:
    data = getattr(batches, name)(*[batches.GZIP] * (name == "header_flood"))
    header = parse(data)
    assert problem(header) is None and header.length == len(data) < 1 << 20
    verify(data, 0, header)


@pytest.mark.parametrize("codec", [0, batches.GZIP, batches.ZSTD])
def test_header_floods_and_tiny_blocks_are_records_that_consumers_read(codec: int) -> None:
    for data in (batches.header_flood(codec), batches.tiny_blocks()):
        assert len(data) < 1 << 20
        inspect(data, LogConfig())


def test_half_of_what_the_well_behaved_client_produces_is_compressed() -> None:
    codecs = [parse(records).compression for records in well_behaved.batches_to_produce()]
    assert codecs.count(0) == len(codecs) / 2 and len(set(codecs)) > 2
    for records in well_behaved.batches_to_produce():
        assert inspect(records, LogConfig()).header.count == 1
        assert takes_long(records) is (parse(records).compression != 0)


def test_attack_with_the_expected_outcome_and_small_costs_has_no_problems() -> None:
    assert HARMLESS.problems(Limits()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcomes": {"NONE": 1, "INVALID_RECORD": 1}}, "ended with NONE instead of INVALID_RECORD"),
        ({"outcomes": {}}, "no request of the attack ended"),
        ({"p99": 0.3}, "p99 is 300 ms"),
        ({"failed": {"produce: REQUEST_TIMED_OUT": 2}}, "got 2 produce: REQUEST_TIMED_OUT"),
        ({"grown": 65 * MIB}, "memory grew by 65 MiB"),
        ({"descriptors": 501}, "501 descriptors more are open"),
        ({"logged": 3 * MIB}, "its log grew by 3.0 MiB"),
        ({"escapes": True}, "control characters"),
        ({"broken": "the process has exited"}, "the process has exited"),
    ],
)
def test_each_cost_beyond_its_limit_is_a_problem(changes: dict[str, object], words: str) -> None:
    (found,) = dataclasses.replace(HARMLESS, **changes).problems(Limits())  # type: ignore[arg-type]
    assert words in found


def test_newcomer_may_be_rejected_only_while_an_attack_takes_all_places() -> None:
    rejected = dataclasses.replace(HARMLESS, failed={"connect: ConnectionError": 1})
    assert rejected.problems(Limits())
    crowded = dataclasses.replace(rejected, attack=dataclasses.replace(ATTACK, crowded=True))
    assert crowded.problems(Limits()) == []


def test_line_of_the_table_contains_the_cost_of_an_attack() -> None:
    assert words(HARMLESS) == "p99 100.0 ms, +0 MiB (at most +0), +0 files; INVALID_RECORD"
    many = dataclasses.replace(HARMLESS, outcomes={str(number): number for number in range(6)})
    assert words(many).endswith("5, 4, 3, 2 and 2 more")


def test_errors_of_a_response_are_those_at_any_depth() -> None:
    def row(*codes: int) -> dict[str, object]:
        rows = [{"index": index, "error_code": code} for index, code in enumerate(codes)]
        return {"responses": [{"name": "t", "partition_responses": rows}]}

    for codes, expected in (((0, 0), {NONE}), ((0, 3, 87), {"UNKNOWN_TOPIC_OR_PARTITION", "INVALID_RECORD"})):
        assert errors(read_response(0, 9, b"\0" + write_response(0, 9, row(*codes)))) == expected


def test_line_of_the_well_behaved_client_is_a_sample() -> None:
    assert Sample.parse("12.500000 fetch 0.001000 NONE\n") == Sample(12.5, "fetch", 0.001, NONE)
