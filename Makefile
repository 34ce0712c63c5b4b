# Every target does its own set-up in .venv; nothing outside this directory is touched.
# PYTHON=/path/to/python chooses the interpreter; otherwise tools/preflight.sh finds one.

VENV := .venv
BIN := $(VENV)/bin
# Build isolation has its own constraint variable in newer versions of pip.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install --quiet

.PHONY: help install demo demo-spark test test-long test-spark check soak soak-spark bench interop-java interop-kafka interop-spark interop-ecosystem clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      three brokers under load: kill -9 one that leads, count every record, watch a group"
	@echo "make demo-spark  actors from a PostgreSQL into topics, tables and files (downloads PySpark, 456 MB)"
	@echo "make install   put the ottla command into $(BIN)"
	@echo "make test      run the tests, with real clients, ZooKeeper, Spark and PostgreSQL (downloads PySpark, 456 MB)"
	@echo "make test-long  the tests that take too long for make test: damaged files on both stores, many partitions, many clients"
	@echo "make test-spark  all tests of Spark: those of make test, and whole pipelines that run twice and are killed"
	@echo "make check     ruff, mypy --strict, import contracts, tidiness"
	@echo "make soak      break clusters under load and transactions for MINUTES=60, and count what was lost"
	@echo "make soak-spark  kill drivers, executors and brokers KILLS=20 times under a pipeline, and count what came of it"
	@echo "make bench     measure, beside Apache Kafka where Java and Maven Central are there"
	@echo "make interop-java   the Java client and Kafka's own tools on Ottla (needs Java, Maven and Maven Central)"
	@echo "make interop-kafka  our client's tests on Apache Kafka (needs the same)"
	@echo "make interop-spark  Spark's own Kafka connector on Ottla, ours on Apache Kafka, Parquet on HDFS (needs the same)"
	@echo "make interop-ecosystem  Kafka Streams, Connect, MirrorMaker 2, Debezium, Flink and others on Ottla; ON=kafka ONLY=flink,streams"
	@echo "make clean     remove $(VENV) and everything built; the data of brokers stays"

$(BIN)/python:
	@python=$$(PYTHON="$(PYTHON)" sh tools/preflight.sh) && "$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@sh tools/progress.sh 'Installing Ottla.' env $(PIP) --editable .
	@touch $@

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	@sh tools/progress.sh 'Installing Ottla and the client of the demo.' env $(PIP) --editable '.[demo]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@sh tools/progress.sh 'Installing Ottla and what its tests need.' env $(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-demo

$(VENV)/.installed-spark: $(VENV)/.installed-dev
	@sh tools/progress.sh 'Installing PySpark, its drivers and a PostgreSQL (456 MB, once).' \
		env $(PIP) --editable '.[dev,spark,postgres,pgserver]'
	@touch $@

$(VENV)/.installed-ecosystem: $(VENV)/.installed-dev
	@sh tools/progress.sh 'Installing Ottla, what its tests need, and a PostgreSQL.' env $(PIP) --editable '.[dev,postgres,pgserver]'
	@touch $@

install: $(VENV)/.installed
	@echo "Installed. Try:  $(BIN)/ottla dev"

# The second act needs PySpark, which is fetched meanwhile: SPARK=0 does without.
SPARK ?= 1

demo: $(VENV)/.installed-demo
	@if [ "$(SPARK)" = 0 ]; then $(BIN)/python -m demo; else $(BIN)/python -m examples.actors.second_act; fi

demo-spark: $(VENV)/.installed-spark
	$(BIN)/python -m examples.actors

# Each process of pytest would rewrite the assertions of all tests at the same time: once, two do it, each a part.
$(VENV)/.rewritten: | $(VENV)/.installed-spark
	@for part in 'tests/[a-h]*' 'tests/[i-z]*'; do $(BIN)/python -m pytest --collect-only -qq $$part >/dev/null 2>&1 & done; wait
	@touch $@

# Hundreds of brokers are started: none of them should compile everything anew. Six processes: most tests wait.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-spark $(VENV)/.rewritten
	$(BIN)/python -m pytest -q -n 6 --dist loadfile --no-loadscope-reorder

test-long: export PYTHONDONTWRITEBYTECODE =
test-long: $(VENV)/.installed-spark
	$(BIN)/python -m pytest -q -m long tests
	EXPLORE=1 $(BIN)/python -m pytest -q -n 2 -m hypothesis tests
	@echo "The long tests passed on $$(git describe --always --dirty)."

test-spark: export PYTHONDONTWRITEBYTECODE =
test-spark: $(VENV)/.installed-spark
	SPARK_TESTS=all $(BIN)/python -m pytest -q tests/spark

KILLS ?= 20

soak-spark: $(VENV)/.installed-spark
	$(BIN)/python -m tests.spark.soak --kills $(KILLS)

MINUTES ?= 60

soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

interop-java: $(VENV)/.installed-dev
	$(BIN)/python -c "from bench.maven import kafka_jars; print(kafka_jars())"
	$(BIN)/python -m pytest -q tests/interop/test_java.py tests/interop/test_kafka_scripts.py tests/interop/test_kafka_console.py

interop-kafka: $(VENV)/.installed-dev
	$(BIN)/python -m tests.on_kafka

interop-spark: $(VENV)/.installed-spark
	$(BIN)/python -m bench.spark_jars
	$(BIN)/python -c "from bench.maven import kafka_jars; print(kafka_jars())"
	SPARK_TESTS=interop $(BIN)/python -m pytest -q tests/spark/interop

ON ?= ottla
ONLY ?=

interop-ecosystem: $(VENV)/.installed-ecosystem
	$(BIN)/python -m tests.ecosystem --on '$(ON)' --only '$(ONLY)'

bench: $(VENV)/.installed-spark
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .venv-spark build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo-data
	find ottla tests tools bench demo -name __pycache__ -type d -prune -exec rm -rf {} +
	@for kept in ottla-data zookeeper-data; do \
		if [ -d $$kept ]; then echo "$$kept has records or metadata of yours, and stays:  rm -r $$kept"; fi; done
