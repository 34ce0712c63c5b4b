"""The order of Java's HashMap."""

from __future__ import annotations

from ottla.cli.kafka_scripts.hash_order import hash_order, table_size


def test_topics_and_settings_have_the_order_of_javas_hash_map():
    kafkas = ["aa", "b2", "zeta", "alpha", "payments", "t_1", "Zed", "orders", "long-name-of-a-topic", "with.dots"]
    assert hash_order(sorted(kafkas), table_size(len(kafkas))) == kafkas, "as Kafka's own tool printed them"
    assert [table_size(count) for count in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    assert hash_order(["😀", "a"], 16) == ["a", "😀"]
