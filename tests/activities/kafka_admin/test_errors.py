"""The table that says what an error means: it covers what clients and brokers send, and errors of a whole request."""

from __future__ import annotations

import pytest

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import AdminError, Answer, NoResponse, answer_of, code_name


@pytest.mark.parametrize(
    ("code", "name", "answer"),
    [
        (7, "REQUEST_TIMED_OUT", Answer.RETRY),
        (41, "NOT_CONTROLLER", Answer.RETRY),
        (89, "THROTTLING_QUOTA_EXCEEDED", Answer.RETRY),
        (3, "UNKNOWN_TOPIC_OR_PARTITION", Answer.DRIFT),
        (39, "INVALID_REPLICA_ASSIGNMENT", Answer.FINAL),
        (999, "Kafka's error code 999", Answer.FINAL),
    ],
)
def test_code_has_a_name_and_a_meaning(code: int, name: str, answer: Answer) -> None:
    assert code_name(code) == name and answer_of(name) == answer


def test_response_that_lacks_an_item_is_asked_for_again() -> None:
    assert answer_of("NO_RESPONSE") == Answer.RETRY


@pytest.mark.parametrize(
    ("code", "raised", "ending"),
    [
        (31, AdminError, "is this client authorized?"),
        (44, AdminError, "PolicyViolationError"),
        (41, NoResponse, "see: rehome stack status"),
        (7, NoResponse, "see: rehome stack status"),
    ],
)
def test_error_of_a_whole_request_is_raised_by_the_same_table(code: int, raised: type[Exception], ending: str) -> None:
    from kafka.errors import for_code

    admin = KafkaAdmin(ClientConfig("broker:9092"))
    with pytest.raises(AdminError) as caught, admin._kafka_errors("list the topics"):
        raise for_code(code)
    assert type(caught.value) is raised and ending in str(caught.value)
