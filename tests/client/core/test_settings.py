"""Settings: Kafka's names either way, and nothing misunderstood in silence."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from ottla.client.consuming import consumer
from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.subscription_state import ConsumerSettings
from ottla.client.core.settings import BOOTSTRAP, ConsumerOptions, GroupSettings, ProducerOptions, Settings
from ottla.client.errors import BadSetting
from ottla.client.producing import producer
from ottla.client.producing.produce_requests import ProducerSettings
from ottla.client.producing.producer import Producer
from ottla.client.values import COMMITTED, EARLIEST, LATEST


def producer_settings(config: dict | None = None, **keywords) -> ProducerSettings:
    return Settings(None, config, keywords, producer.PARTS).part(ProducerSettings)


def test_keywords_and_the_dotted_dictionary_say_the_same():
    by_keyword = producer_settings(acks="all", linger_ms=20, compression_type="zstd")
    assert producer_settings({"acks": "all", "linger.ms": 20, "compression.type": "zstd"}) == by_keyword
    assert by_keyword.acks == -1


def test_text_as_in_configuration_files_is_read():
    assert producer_settings({"linger.ms": "7", "enable.idempotence": "false", "acks": "1"}).linger_ms == 7
    read = Settings(None, {"enable.auto.commit": "False", "group.id": "g"}, {}, consumer.PARTS).part(GroupSettings)
    assert read.enable_auto_commit is False


def test_names_of_librdkafka_are_understood():
    config = {"metadata.broker.list": "a:1", "queue.buffering.max.ms": 3, "message.timeout.ms": 4000}
    settings = Settings(None, config, {}, producer.PARTS)
    assert settings.bootstrap == [("a", 1)]
    assert settings.part(ProducerSettings).linger_ms == 3
    assert settings.part(ProducerSettings).delivery_timeout_ms == 4000


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("earliest", EARLIEST), ("latest", LATEST), ("none", None), ("smallest", EARLIEST), (123, 123)],
)
def test_auto_offset_reset_is_a_word_or_a_duration(word, meaning):
    settings = Settings(None, {"auto.offset.reset": word}, {}, consumer.PARTS)
    assert settings.part(ConsumerSettings).auto_offset_reset == meaning


def test_isolation_and_strategy_have_kafkas_words():
    config = {
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RoundRobinAssignor,cooperative-sticky",
    }
    settings = Settings(None, config, {}, consumer.PARTS)
    assert settings.part(ConsumerSettings).isolation_level == COMMITTED
    assert settings.part(GroupSettings).partition_assignment_strategy == ("roundrobin", "cooperative-sticky")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Producer(config={"linger.sm": 5}), "did you mean 'linger_ms'"),
        (lambda: Producer(acks=2), "acks is 2"),  # type: ignore[arg-type]
        (lambda: Producer(linger_ms="soon"), "linger_ms cannot be 'soon'"),  # type: ignore[arg-type]
        (lambda: Producer(group_id="g"), "no setting 'group_id'"),  # type: ignore[call-arg]
        (lambda: Producer(compression_type="rar"), "no codec 'rar'"),  # type: ignore[arg-type]
        (lambda: Producer(partitioner="stick"), "no partitioner 'stick'"),
        (lambda: Producer("here:there"), "not host:port"),
        (lambda: Producer(security_protocol="SASL_SSL"), "PLAINTEXT only"),
        (lambda: Consumer(goup_id="g"), "did you mean 'group_id'"),  # type: ignore[call-arg]
        (lambda: Consumer(group_protocol="modern"), "group_protocol"),  # type: ignore[arg-type]
        (lambda: Consumer(enable_auto_commit="maybe"), "true or false"),  # type: ignore[arg-type]
        (lambda: Consumer(config={"isolation.level": "committed"}), "it is read_uncommitted or read_committed"),
        (lambda: Consumer().subscribe(pattern="a.*"), "needs a group_id"),
        (lambda: Consumer("t").assign([]), "either subscribes or assigns"),
    ],
)
def test_contradictory_settings_are_refused(make, complaint):
    with pytest.raises(BadSetting, match=complaint):
        make()


@pytest.mark.parametrize(("parts", "options"), [(producer.PARTS, ProducerOptions), (consumer.PARTS, ConsumerOptions)])
def test_types_name_exactly_the_settings_there_are(parts, options):
    names = {field.name for part in parts for field in fields(part)} - {BOOTSTRAP}
    assert names == set(get_type_hints(options))
