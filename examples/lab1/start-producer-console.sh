#!/usr/bin/env bash
# The first lab: type lines, each is a record. BOOTSTRAP names another broker than the one on this machine.
cd "$(dirname "$0")/../.." || exit

bin/kafka-console-producer.sh --broker-list \
"${BOOTSTRAP:-localhost:9092}" --topic "${TOPIC:-my-topic}"
