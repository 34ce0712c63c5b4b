"""Partitioners: the partition of a record."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_another_client

from ottla.client.core.metadata import NO_LEADER, Leader, TopicMetadata
from ottla.client.errors import BadSetting, ClientError
from ottla.client.producing.partitioners import Chance, PriorityPartitioner, murmur2, partition_of_key, partitioner_of
from ottla.wire.records import Record

PLAIN = Record(value=b"v")


def topic(count: int, without_leader: tuple[int, ...] = ()) -> TopicMetadata:
    leaders = {index: NO_LEADER if index in without_leader else Leader(1, 0) for index in range(count)}
    return TopicMetadata("t", bytes(16), leaders, [index for index in leaders if index not in without_leader])


# The Java client's own test vectors, as unsigned numbers.
@pytest.mark.parametrize(
    ("key", "hash"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_the_java_client_does(key, hash):
    assert murmur2(key) == hash & 0xFFFFFFFF


@given(st.binary(max_size=100))
def test_keys_are_hashed_as_other_clients_do(key):
    assert murmur2(key) == murmur2_of_another_client(key)


@given(
    st.binary(max_size=20),
    st.integers(1, 50),
    st.sampled_from(["sticky", "round_robin", "shuffled_round_robin", "random", "hash"]),
)
def test_a_key_goes_to_the_same_partition_even_without_a_leader(key, count, name):
    chosen = partitioner_of(name).choose(topic(count, without_leader=tuple(range(count))), Record(key=key))
    assert chosen == partition_of_key(key, count)


def test_sticky_fills_a_batch_for_one_partition_then_one_for_the_next():
    sticky = partitioner_of("sticky", seed=1, batch_size=100)
    chosen = []
    for _ in range(12):
        chosen.append(sticky.choose(topic(3), PLAIN))
        sticky.appended(topic(3), chosen[-1], 30)
    assert all(len(set(chosen[start : start + 4])) == 1 for start in (0, 4, 8))
    assert {chosen[0], chosen[4], chosen[8]} == {0, 1, 2}


def test_sticky_leaves_a_partition_that_lost_its_leader():
    sticky = partitioner_of("sticky", seed=1)
    stuck_to = sticky.choose(topic(3), PLAIN)
    assert sticky.choose(topic(3, without_leader=(stuck_to,)), PLAIN) != stuck_to


def test_round_robin_partitioner_uses_all_partitions_with_a_leader():
    robin = partitioner_of("round_robin")
    assert [robin.choose(topic(3), PLAIN) for _ in range(5)] == [0, 1, 2, 0, 1]
    robin = partitioner_of("round_robin")
    assert [robin.choose(topic(3, without_leader=(1,)), PLAIN) for _ in range(4)] == [0, 2, 0, 2]


def test_shuffled_round_robin_partitioner_has_an_order_that_its_seed_decides():
    def order(seed: int, count: int) -> list[int]:
        robin = partitioner_of("shuffled_round_robin", seed=seed)
        first = [robin.choose(topic(count), PLAIN) for _ in range(count)]
        assert [robin.choose(topic(count), PLAIN) for _ in range(count)] == first
        assert sorted(first) == list(range(count))
        return first

    assert order(7, 13) == order(7, 13) != order(8, 13)
    assert order(7, 1) == [0]
    ascending = [seed for seed in range(100) if order(seed, 13)[:7] == sorted(order(seed, 13)[:7])]
    assert ascending == [], "one seed in 5040 has the first seven ascending"


def test_shuffled_round_robin_keeps_its_order_when_a_partition_loses_its_leader():
    robin = partitioner_of("shuffled_round_robin", seed=7)
    before = [robin.choose(topic(5), PLAIN) for _ in range(5)]
    lost = before[2]
    after = [robin.choose(topic(5, without_leader=(lost,)), PLAIN) for _ in range(4)]
    left = [partition for partition in before if partition != lost]
    at = left.index(after[0])
    assert after == left[at:] + left[:at]


def test_random_repeats_with_its_seed_and_reaches_every_partition():
    def draw(seed: int) -> list[int]:
        chance = partitioner_of("random", seed=seed)
        return [chance.choose(topic(4), PLAIN) for _ in range(400)]

    assert draw(7) == draw(7) != draw(8)
    counts = Counter(draw(7))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 60


def test_hash_treats_no_key_like_an_empty_one():
    assert partitioner_of("hash").choose(topic(7), PLAIN) == partition_of_key(b"", 7)


def urgent(priority: int, key: bytes | None = None) -> Record:
    return Record(key=key, headers=(("priority", b"%d" % priority),))


def test_each_priority_has_partitions_of_its_own():
    bands = PriorityPartitioner((3, 2, 1))
    chosen = {priority: {bands.choose(topic(12), urgent(priority)) for _ in range(40)} for priority in (0, 1, 2, 9)}
    assert chosen == {0: set(range(5)), 1: set(range(5, 9)), 2: {9, 10, 11}, 9: {9, 10, 11}}
    assert bands.choose(topic(12), PLAIN) in chosen[0]


def test_a_key_keeps_its_partition_within_its_band():
    bands = PriorityPartitioner((1, 1))
    assert len({bands.choose(topic(8), urgent(1, b"key")) for _ in range(10)}) == 1


def test_a_priority_that_is_no_number_is_refused():
    with pytest.raises(ClientError, match="no number"):
        PriorityPartitioner((1, 1)).choose(topic(2), Record(headers=(("priority", b"high"),)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40))
def test_bands_cover_all_partitions_and_do_not_overlap(weights, count):
    bands = PriorityPartitioner(weights)
    covered = [bands.band(priority, count) for priority in range(min(len(weights), count))]
    assert all(len(band) >= 1 for band in covered)
    assert [partition for band in covered for partition in band] == list(range(count))


def test_a_function_decides_for_itself():
    chosen = partitioner_of(lambda name, record, partitions: partitions[len(record.value or b"")])
    assert chosen.choose(topic(5), Record(value=b"abc")) == 3


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(BadSetting, match="sticky, round_robin, shuffled_round_robin, random, hash, priority"):
        partitioner_of("stciky")


def test_chance_is_spread_evenly():
    chance = Chance(42)
    counts = Counter(chance.below(10) for _ in range(10_000))
    assert set(counts) == set(range(10))
    assert max(counts.values()) - min(counts.values()) < 250
