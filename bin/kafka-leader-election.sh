#!/bin/sh
# What Apache Kafka's script of this name does, done by Ottla's client. PYTHON chooses the interpreter.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
[ -x "$python" ] || python=python3
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m ottla.cli.kafka_scripts kafka-leader-election.sh "$@"
