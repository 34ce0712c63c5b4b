"""The controller's rules from the settings of the broker."""

from __future__ import annotations

import pytest

from ottla.cluster.rules import rules_of
from ottla.config import load_broker_config
from ottla.errors import ErrorCode, Refused

CONFIG = load_broker_config(flags={"num.partitions": "5", "log.cleanup.policy": "compact"})
RULES = rules_of(CONFIG)


def test_rules_have_the_defaults_of_the_broker():
    assert (RULES.partitions, RULES.replication_factor) == (5, 1)


@pytest.mark.parametrize(
    "configs", [{"retention.ms": "soon"}, {"retention.mss": "1"}, {"retention.ms": None}, {"cleanup.policy": "keep"}]
)
def test_an_invalid_topic_setting_is_refused(configs):
    with pytest.raises(Refused) as caught:
        RULES.check_topic(configs)
    assert caught.value.code is ErrorCode.invalid_config


def test_a_valid_topic_setting_is_accepted():
    RULES.check_topic({"retention.ms": "1000", "cleanup.policy": "compact,delete"})


def test_a_broker_setting_is_checked_for_its_scope():
    with pytest.raises(Refused):
        RULES.check_broker(1, {"broker.id": "2"})
    RULES.check_broker(None, {"log.retention.ms": "1000"})


def test_list_settings_start_from_the_value_of_the_broker():
    assert RULES.topic_list("cleanup.policy") == "compact"
    assert RULES.topic_list("retention.ms") is None
    assert RULES.topic_list("nonsense") is None
    assert RULES.broker_list("log.cleanup.policy") == "compact"
    assert RULES.broker_list("log.retention.ms") is None
