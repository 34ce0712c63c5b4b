#!/usr/bin/env bash
# The first lab: every record of the topic that lab.env names, from the first on.
cd "$(dirname "$0")/../.." && . examples/lab1/lab.env || exit

bin/kafka-console-consumer.sh --bootstrap-server "$BOOTSTRAP" \
--topic "$TOPIC" --from-beginning
