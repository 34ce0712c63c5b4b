#!/usr/bin/env bash
# The first lab: every record of the topic, from the first on. BOOTSTRAP names another broker.
cd "$(dirname "$0")/../.." || exit

bin/kafka-console-consumer.sh --bootstrap-server "${BOOTSTRAP:-localhost:9092}" \
--topic "${TOPIC:-my-topic}" --from-beginning
