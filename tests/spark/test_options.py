"""Options of the data source, and offset ranges. None of it needs Spark."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.values import TopicPartition
from ottla.spark import offset_ranges
from ottla.spark.clients import new_consumer, new_producer
from ottla.spark.offset_ranges import OffsetRange
from ottla.spark.options import EARLIEST, LATEST, BadOption, Edge, check_promise, read_options, write_options

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AT = {"kafka.bootstrap.servers": "localhost:9092"}
READ = AT | {"subscribe": "t"}


def test_defaults_are_those_of_the_connector():
    stream = read_options(READ, streaming=True)
    batch = read_options(READ, streaming=False)
    assert (stream.starting, batch.starting, batch.ending) == (Edge(LATEST), Edge(EARLIEST), Edge(LATEST))
    assert stream.fail_on_data_loss
    assert stream.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def test_names_are_understood_in_any_case_and_kafkas_settings_are_passed_on():
    given = {"SUBSCRIBE": "a, b", "kafka.bootstrap.servers": "h:1", "kafka.isolation.level": "read_committed"}
    options = read_options(given | {"includeheaders": "TRUE", "MAXOFFSETSPERTRIGGER": "7"}, streaming=True)
    assert options.topics == ("a", "b")
    assert options.kafka == {"bootstrap.servers": "h:1", "isolation.level": "read_committed"}
    assert options.read_committed
    assert options.columns[-1] == "headers"
    assert options.offsets_max == 7


def test_offsets_and_times_are_read_from_json():
    options = read_options(READ | {"startingOffsets": '{"t":{"0":23,"1":-2}}'}, streaming=True)
    assert options.starting == Edge({T0: 23, T1: EARLIEST})
    options = read_options(READ | {"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, streaming=True)
    assert options.starting == Edge(times={T0: 5})
    options = read_options(READ | {"startingTimestamp": "9", "startingOffsets": "latest"}, streaming=True)
    assert options.starting == Edge(times=9)
    options = read_options(AT | {"assign": '{"t":[0,1]}', "maxtriggerdelay": "2m", "minoffsetspertrigger": "5"},
                           streaming=True)  # fmt: skip
    assert options.assigned == (T0, T1)
    assert options.trigger_delay_s == 120


@pytest.mark.parametrize(
    ("given", "streaming", "said"),
    [
        (AT, True, "one of assign, subscribe, subscribePattern"),
        ({"subscribe": "t"}, True, "kafka.bootstrap.servers is missing"),
        (READ | {"assign": "{}"}, True, "assign and subscribe contradict each other"),
        (READ | {"startingOffset": "latest"}, True, "no option 'startingOffset'; did you mean startingOffsets"),
        (READ | {"txnAppId": "t"}, True, "txnAppId is an option of writing"),
        (READ | {"endingOffsets": "latest"}, True, "endingOffsets cannot be set here: a streaming query has no end"),
        (READ | {"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger cannot be set here: a batch query"),
        (READ | {"startingOffsets": "latest"}, False, "startingOffsets of a batch query cannot be latest"),
        (READ | {"endingOffsets": '{"t":{"0":-2}}'}, False, "endingOffsets of a batch query cannot be earliest"),
        (READ | {"startingOffsets": '{"t":[1]}'}, True, 'it looks like {"orders":{"0":23'),
        (READ | {"startingOffsets": '{"t":{"0":-3}}'}, True, "below -2"),
        (READ | {"startingOffsets": '{"u":{"0":1}}'}, True, "startingOffsets names the topic u, which is not read"),
        (
            AT | {"subscribe": "t,u", "startingOffsets": '{"u":{"0":1}}'},
            True,
            "startingOffsets does not name the topic t, which is read",
        ),
        (
            READ | {"endingOffsetsByTimestamp": '{"u":{"0":1}}'},
            False,
            "endingOffsetsByTimestamp names the topic u, which is not read",
        ),
        (
            AT | {"subscribePattern": "t.*", "startingOffsets": '{"u":{"0":1}}'},
            True,
            "startingOffsets names the topic u, which is not read",
        ),
        (AT | {"assign": '{"a b":[0]}'}, True, "assign names 'a b', as no topic can be called"),
        (READ | {"failOnDataLoss": "maybe"}, True, "failOnDataLoss is 'maybe'"),
        (READ | {"minPartitions": "0"}, True, "minPartitions is '0'; it is a whole number from 1 on"),
        (READ | {"columns": "value", "includeHeaders": "true"}, True, "columns leaves the headers out"),
        (READ | {"maxTriggerDelay": "5s"}, True, "maxTriggerDelay has a meaning only with minOffsetsPerTrigger"),
        (READ | {"kafka.auto.offset.reset": "latest"}, True, "startingOffsets says where to begin"),
        (AT | {"subscribePattern": "("}, True, "subscribePattern"),
        (READ | {"inferschema": "true"}, True, "there is no option 'inferSchema'"),  # as Spark hands it over
        (
            READ | {"kafka.ssl.truststore.location": "x"},
            True,
            "kafka.ssl.truststore.location cannot be set: the client",
        ),
    ],
)
def test_unknown_and_contradictory_options_are_refused_by_name(given, streaming, said):
    with pytest.raises(BadOption) as refused:
        read_options(given, streaming=streaming)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"txnVersion": "1"}, "txnAppId, which is missing"),
        ({"groupId": "t"}, "groupId is an option of reading"),
        ({"guarantee": "perhaps"}, "at_least_once or exactly_once"),
        ({"guarantee": "at_least_once", "txnAppId": "a"}, "txnAppId cannot be set here"),
        ({"topic": ".."}, "topic names '..', as no topic can be called"),
        ({"kafka.transactional.id": "x"}, "txnAppId names a writer"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(given, said):
    with pytest.raises(BadOption) as refused:
        write_options(AT | given)
    assert said in str(refused.value)


@pytest.mark.parametrize("acks", ["0", "1"])
@pytest.mark.parametrize(
    ("given", "streaming", "refused"),
    [
        ({}, True, True),
        ({"txnAppId": "a", "txnVersion": "1"}, False, True),
        ({"guarantee": "exactly_once"}, False, True),
        ({"guarantee": "at_least_once"}, True, False),
        ({}, False, False),
    ],
)
def test_exactly_once_does_not_go_with_few_acknowledgements(given, streaming, refused, acks):
    options = write_options(AT | given | {"kafka.acks": acks})
    if refused:
        with pytest.raises(BadOption, match=f"kafka.acks is '{acks}', and exactly once needs all"):
            check_promise(options, streaming=streaming)
    else:
        check_promise(options, streaming=streaming)
        assert "may be lost" in options.notes[0]
    for enough in ({}, {"kafka.acks": "all"}, {"kafka.acks": "-1"}):
        strong = write_options(AT | given | enough)
        check_promise(strong, streaming=streaming)
        assert strong.notes == ()


def test_a_limit_is_shared_in_proportion_to_the_backlog_and_every_partition_gets_some():
    start = {T0: 0, T1: 100}
    assert offset_ranges.limited(start, {T0: 1000, T1: 100}, 10) == {T0: 10, T1: 100}
    assert offset_ranges.limited(start, {T0: 1000, T1: 101}, 100) == {T0: 99, T1: 101}
    assert offset_ranges.limited(start, {T0: 5, T1: 103}, 100) == {T0: 5, T1: 103}


def test_a_partition_that_is_new_begins_at_its_beginning():
    both = [OffsetRange("t", 0, 3, 5), OffsetRange("t", 1, 0, 2, begins=True)]
    assert offset_ranges.ranges({T0: 3}, {T0: 5, T1: 2}) == both
    assert offset_ranges.ranges({T0: 3}, {T0: 3}) == []


parts = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 2000)), min_size=1, max_size=6).map(
    lambda sizes: [OffsetRange("t", at, start, start + size) for at, (start, size) in enumerate(sizes)]
)


@given(parts, st.none() | st.integers(1, 20), st.none() | st.integers(50, 500))
def test_tasks_cover_every_offset_once_and_are_as_many_and_as_small_as_asked(given, least, most):
    cut = offset_ranges.tasks(given, least, most)
    for part in given:
        pieces = [piece for piece in cut if piece.partition == part.partition]
        assert pieces[0].start == part.start
        assert pieces[-1].end == part.end
        assert all(before.end == after.start for before, after in pairwise(pieces))
    if most is not None:
        assert max(map(len, cut)) <= most
    if least is None and most is None:
        assert cut == given
    if least is not None and least <= sum(map(len, given)):
        assert len(cut) >= min(least, len(given))
    assert cut == offset_ranges.tasks(given, least, most)


def test_offsets_are_stored_as_the_connector_stores_them():
    reported = {"t": {"0": 23, "10": 4}, "u": {"1": 0}}
    assert offset_ranges.to_json(offset_ranges.from_json(reported)) == reported


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        ({"kafka.enable.idempotence": "true"}, None),
        ({"kafka.value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer"}, None),
        ({"kafka.client.id": "mine"}, None),
        ({"kafka.buffer.memory": "1000000"}, None),
        ({"includeHeaders": "true"}, "includeHeaders has no effect: the column headers is written"),
        ({"includeheaders": "true"}, "includeHeaders has no effect"),  # as Spark hands it over
        ({"kafka.Receive.buffer.bytes": "65536"}, "kafka.Receive.buffer.bytes has no effect"),
        ({"value_deserializer": "json"}, "value_deserializer has no effect: values are bytes"),
        ({"kafka.max.poll.records": "7"}, "no group is joined"),
        ({"kafka.fetch.max.bytes": "7"}, "it is a setting of the client for reading"),
        ({"group.id": "g"}, "settings of the client begin with kafka., as kafka.group.id"),
    ],
)
def test_options_of_the_kafka_connector_are_accepted_with_a_note_if_they_have_no_effect(given, noted):
    options = write_options(AT | {"topic": "t"} | given)
    assert (noted is None) == (options.notes == ())
    assert noted is None or noted in options.notes[0]
    new_producer(options.kafka)


def test_settings_of_producers_may_stand_where_topics_are_read():
    options = read_options(READ | {"kafka.acks": "all", "kafka.enable.auto.commit": "false"}, streaming=True)
    assert options.notes == ("kafka.acks has no effect: it is a setting of the client for writing",)
    new_consumer(options.kafka)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"kafka.enable.idempotence": "false"},
            "kafka.enable.idempotence cannot be set: the sink is always idempotent",
        ),
        ({"kafka.value.serializer": "io.confluent.KafkaAvroSerializer"}, "values are bytes or text"),
        ({"Topc": "t"}, "there is no option 'Topc'; did you mean topic?"),
    ],
)
def test_options_with_another_meaning_are_refused_as_written(given, said):
    with pytest.raises(BadOption) as refused:
        write_options(AT | given)
    assert said in str(refused.value)


def test_settings_that_the_client_refuses_are_named_as_options():
    for wrong, said in (
        (
            {"kafka.isolation.levl": "x"},
            "there is no option 'kafka.isolation.levl'; did you mean 'kafka.isolation.level'",
        ),
        ({"kafka.fetch.max.wait.ms": "soon"}, "kafka.fetch.max.wait.ms cannot be 'soon'"),
    ):
        with pytest.raises(BadOption) as refused:
            new_consumer(read_options(READ | wrong, streaming=True).kafka)
        assert said in str(refused.value)


def test_one_dict_serves_for_reading_and_for_writing():
    """Spark's connector does not look at options of reading when it writes, nor at the topic when it reads."""
    both = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "t",
        "topic": "t",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": "10",
        "minPartitions": "4",
    }
    written = write_options(both)
    assert written.topic == "t"
    assert "failOnDataLoss has no effect: it is an option of reading" in written.notes
    assert len(written.notes) == 5
    read = read_options(both, streaming=True)
    assert (read.topics, read.fail_on_data_loss) == (("t",), False)
    assert read.notes == ("topic has no effect: it is an option of writing; subscribe says what is read",)
