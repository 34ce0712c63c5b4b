"""AlterConfigs: edits of settings, and which of them are refused."""

from __future__ import annotations

import pytest

from ottla.cluster import config_edits
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp
from ottla.errors import ErrorCode, Refused
from tests.cluster.test_controller import Story, lists


def edit(*edits: ConfigEdit, old=None, replace=False):
    return config_edits.edited(old or {}, ConfigAlteration("t", edits, replace), lists.get)


def test_edits_set_delete_append_and_subtract():
    old = {"retention.ms": "1", "cleanup.policy": "compact"}
    assert edit(ConfigEdit("retention.ms", "2"), old=old) == {"retention.ms": "2", "cleanup.policy": "compact"}
    assert edit(ConfigEdit("retention.ms", None, ConfigOp.delete), old=old) == {"cleanup.policy": "compact"}
    append = ConfigEdit("cleanup.policy", "delete,compact", ConfigOp.append)
    assert edit(append, old=old)["cleanup.policy"] == "compact,delete"
    assert edit(append) == {"cleanup.policy": "delete,compact"}, "a list not set starts from its default"
    subtract = ConfigEdit("cleanup.policy", "delete", ConfigOp.subtract)
    assert edit(subtract, old={"cleanup.policy": "compact, delete"}) == {"cleanup.policy": "compact"}
    assert edit(ConfigEdit("retention.ms", "9"), old=old, replace=True) == {"retention.ms": "9"}


@pytest.mark.parametrize(
    ("edits", "code"),
    [
        ([ConfigEdit("retention.ms", "1", ConfigOp.append)], ErrorCode.invalid_config),
        ([ConfigEdit("retention.ms", None)], ErrorCode.invalid_request),
        ([ConfigEdit("retention.ms", "1"), ConfigEdit("retention.ms", "2")], ErrorCode.invalid_request),
        ([ConfigEdit("retention.ms", "1", 9)], ErrorCode.invalid_request),
        ([ConfigEdit("retention.ms", "1" * 70_000)], ErrorCode.invalid_config),
    ],
)
def test_bad_edits_are_refused(edits, code):
    with pytest.raises(Refused) as caught:
        edit(*edits)
    assert caught.value.code is code


def test_configs_of_unknown_topics_and_bad_values_are_refused_independently():
    story = Story()
    story.tell("brokers 1\ncreate t")
    set_ = [ConfigEdit("retention.ms", "5")]
    alterations = [
        ConfigAlteration("t", set_),
        ConfigAlteration("nothing", set_),
        ConfigAlteration("../x", set_),
        ConfigAlteration("u", set_),
        ConfigAlteration("u", set_),
    ]
    decision = config_edits.alter_topic_configs(story.world.image, alterations, story.rules)
    assert [result.code.name for result in decision.results] == [
        "none", "unknown_topic_or_partition", "invalid_topic_exception", "invalid_request", "invalid_request",
    ]  # fmt: skip
    story.world.commit(decision.changes)
    assert story.world.image.topics["t"].configs == {"retention.ms": "5"}
    bad = [ConfigAlteration("t", [ConfigEdit("nonsense", "1")])]
    (result,) = config_edits.alter_topic_configs(story.world.image, bad, story.rules).results
    assert result.code is ErrorCode.invalid_config
