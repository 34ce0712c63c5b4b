"""The reason of a failure is found in PySpark's messages, and our errors come without our frames."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from ottla.spark.options import BadOption
from ottla.spark.pipeline.failures import BUSY, is_busy, is_permanent, position, reason
from ottla.spark.tracebacks import short_tracebacks

STATE = """
=== Streaming Query ===
Identifier: large [id = 4b5d3ff5, runId = 590c1a8f]
Current Committed Offsets: {}
ValueError: this is no reason

Current State: INITIALIZING
"""
FAILED = "[STREAM_FAILED] Query [id = 06f743b5, runId = 72061551] terminated with exception: "
SOURCE = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "/site-packages/ottla/spark/options.py", line 186, in __init__
    raise BadOption(self._unknown(name))
ottla.spark.options.BadOption: there is no option 'subscrib'; did you mean subscribe?
 SQLSTATE: 38000"""
TASK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/site-packages/ottla/client/core/broker_connection.py", line 101, in open
    raise Unreachable(f"cannot connect to {address}: {_reason(error)}") from None
ottla.client.errors.Unreachable: cannot connect to 127.0.0.1:1: Connection refused
 SQLSTATE: 38000 SQLSTATE: XXKST"""
EACH_BATCH = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch \
sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/site-packages/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "job.py", line 36, in each
    raise KeyError("no such column")
KeyError: 'no such column'
 SQLSTATE: 39000 SQLSTATE: XXKST"""
CLUSTER = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 1, in write
ValueError: no column
and a second line

\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:100)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Driver stacktrace:"""
MALFORMED = """[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: \
[null].
Parse Mode: FAILFAST. SQLSTATE: 22023 SQLSTATE: XXKST"""
SQL = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
selec 1
^^^
"""
COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `foo` cannot be resolved. Did you mean one of the \
following? [`id`]. SQLSTATE: 42703; line 2 pos 20;
'Project [1 AS a#44, 'b]
+- 'Filter ('foo > 1)
   +- Range (0, 3, step=1)
"""
NOT_FOUND = """An error occurred while calling o52.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: otla. Make \
sure the provider name is correct. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(QueryExecutionErrors.scala:720)
Caused by: java.lang.ClassNotFoundException: otla.DefaultSource
\tat java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)
"""
NOT_MADE = """Error while instantiating 'org.apache.spark.sql.internal.SessionStateBuilder':

JVM stacktrace:
java.lang.IllegalArgumentException: Error while instantiating 'org.apache.spark.sql.internal.SessionStateBuilder':
\tat org.apache.spark.sql.classic.SparkSession$.instantiateSessionState(SparkSession.scala:1127)
Caused by: java.lang.IllegalArgumentException: spark.sql.shuffle.partitions should be int, but was four
\tat org.apache.spark.internal.config.ConfigHelpers$.toNumber(ConfigBuilder.scala:37)
"""
NAME = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
ottla.client.errors.BadName: topic a/b: the name has a character that it cannot have
 SQLSTATE: 38000"""
MALFORMED_SAID = (
    "Malformed records are detected in record parsing: [null]. Parse Mode: FAILFAST. "
    "(MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION)"
)
COLUMN_SAID = (
    "A column with name `foo` cannot be resolved. Did you mean one of the following? [`id`]. "
    "(UNRESOLVED_COLUMN.WITH_SUGGESTION)"
)


@pytest.mark.parametrize(
    ("story", "said", "permanent"),
    [
        (SOURCE, "there is no option 'subscrib'; did you mean subscribe?", True),
        (FAILED + SOURCE + " SQLSTATE: XXKST" + STATE, "there is no option 'subscrib'; did you mean subscribe?", True),
        (FAILED + TASK + STATE, "cannot connect to 127.0.0.1:1: Connection refused", False),
        (FAILED + EACH_BATCH + STATE, "KeyError: 'no such column'", False),
        (CLUSTER, "ValueError: no column and a second line", False),
        (
            FAILED + MALFORMED + STATE,
            MALFORMED_SAID,
            True,
        ),
        (
            NOT_FOUND,
            "Failed to find the data source: otla. Make sure the provider name is correct. (DATA_SOURCE_NOT_FOUND)",
            True,
        ),
        (NOT_MADE, "spark.sql.shuffle.partitions should be int, but was four", False),
        (NAME, "topic a/b: the name has a character that it cannot have", True),
        (SQL, "Syntax error at or near 'selec'. (PARSE_SYNTAX_ERROR)", True),
        (
            COLUMN,
            COLUMN_SAID,
            True,
        ),
        (FAILED + "no worker connects back. SQLSTATE: XXKST" + STATE, "no worker connects back.", False),
        ("", "no reason was given", False),
    ],
)  # fmt: skip
def test_the_reason_is_shown_without_its_wrappers(story: str, said: str, permanent: bool):
    assert reason(story) == said
    assert is_permanent(story) is permanent


@pytest.mark.parametrize(
    "reported",
    [
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0. SQLSTATE: 22012",
        "[ARITHMETIC_OVERFLOW] integer overflow. SQLSTATE: 22003",
        "[CAST_OVERFLOW] The value 999 cannot be cast to TINYINT due to an overflow. SQLSTATE: 22003",
        "[INVALID_ARRAY_INDEX] The index 7 is out of bounds. SQLSTATE: 22003",
        "[CANNOT_PARSE_TIMESTAMP] Text 'x' could not be parsed. SQLSTATE: 22007",
    ],
)
def test_sql_errors_that_the_same_records_would_repeat_are_not_retried(reported):
    each_batch = EACH_BATCH.replace(
        "KeyError: 'no such column'", f"pyspark.errors.exceptions.captured.Some: {reported}"
    )
    assert "pyspark.errors" in each_batch
    for story in (
        FAILED + reported + STATE,
        f"{FAILED}[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030\n{reported}{STATE}",
    ):
        assert is_permanent(story)
    assert is_permanent(FAILED + each_batch + STATE)
    assert not is_permanent(FAILED + "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030" + STATE)


def test_a_machine_that_is_too_busy_is_called_that():
    reported = f"{FAILED}Job aborted due to stage failure: Lost task 0.0: org.apache.spark.SparkException: {BUSY}.\n"
    story = (
        reported + "\tat org.apache.spark.api.python.PythonWorkerFactory.create(PythonWorkerFactory.scala:1)" + STATE
    )
    assert reason(story) == f"{BUSY}: the machine is too busy to start one within ten seconds"
    assert is_busy(story)
    assert not is_permanent(story)
    assert not is_busy(TASK)


def test_an_error_of_sql_has_a_position():
    assert position(SQL) == (1, 0)
    assert position(COLUMN) == (2, 20)
    assert position(SOURCE) is None


@short_tracebacks
class Source:
    def schema(self) -> str:
        try:
            return {"y": "z"}["x"]
        except KeyError as problem:
            raise BadOption("there is no option 'x'") from problem

    def read(self) -> Iterator[int]:
        yield 1
        self.helper()

    def write(self) -> None:
        self.defect()

    def helper(self) -> None:
        raise BadOption("not there")

    def defect(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("call", [lambda: Source().schema(), lambda: list(Source().read())])
def test_our_errors_reach_spark_without_our_frames(call):
    with pytest.raises(BadOption) as refused:
        call()
    frames = traceback.extract_tb(refused.value.__traceback__)
    assert not {"schema", "read", "helper"} & {frame.name for frame in frames}
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_frames_of_a_defect_stay():
    with pytest.raises(AssertionError) as defect:
        Source().write()
    assert traceback.extract_tb(defect.value.__traceback__)[-1].name == "defect"


def test_a_record_that_does_not_fit_is_named_and_not_tried_again():
    named = "a record does not fit the schema of orders: topic orders, partition 0, offset 6, value two oranges"
    text = f"[STREAM_FAILED] Query [id = 1] terminated with exception: [USER_RAISED_EXCEPTION] {named} SQLSTATE: P0001"
    assert reason(text).startswith(named)
    assert is_permanent(text)
    assert not is_permanent(text.replace("does not fit the schema of", "is broken"))
