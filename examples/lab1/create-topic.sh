#!/usr/bin/env bash
# The first lab: makes the topic that lab.env names. With one partition everything comes out in order.
cd "$(dirname "$0")/../.." && . examples/lab1/lab.env || exit

bin/kafka-topics.sh --create --bootstrap-server "$BOOTSTRAP" \
--topic "$TOPIC" --partitions "$PARTITIONS" --if-not-exists
