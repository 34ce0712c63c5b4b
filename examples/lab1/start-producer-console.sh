#!/usr/bin/env bash
# The first lab: type lines, each is a record of the topic that lab.env names.
cd "$(dirname "$0")/../.." && . examples/lab1/lab.env || exit

bin/kafka-console-producer.sh --broker-list \
"$BOOTSTRAP" --topic "$TOPIC"
