#!/usr/bin/env bash
# The first lab: a topic of 13 partitions. With one partition everything would come out in order.
cd "$(dirname "$0")/../.." || exit

bin/kafka-topics.sh --create --bootstrap-server "${BOOTSTRAP:-localhost:9092}" \
--topic "${TOPIC:-my-topic}" --partitions "${PARTITIONS:-13}" --if-not-exists
