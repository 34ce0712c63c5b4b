"""Actors and their colleges: from a database into a topic, enriched, and on to a topic, to Parquet and to a table.

Actors are rows of a PostgreSQL table, and an application writes more of them straight into the topic. Everything is
ordinary PySpark; what each query has done is in its checkpoint, so the job can be killed and started again anywhere.

    python examples/actors/job.py localhost:9092 postgresql://user:password@localhost/theatre file:///tmp/actors
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, from_json, struct, to_json, when
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.connectors.parquet import ParquetEpochs

ACTOR = "id int, name string, college_id int"
ENRICHED = "id int, name string, college string, city string"


def topic(spark: SparkSession, bootstrap: str, name: str, **more: str) -> DataFrame:
    stream = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", name)
    stream = stream.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
    return stream.options(**more).load().selectExpr("cast(key as string) key", "cast(value as string) value")


def captured(spark: SparkSession, database: str) -> DataFrame:
    """Rows of the table as they change; a deleted one is a key without a value."""
    source = spark.readStream.format("ottla-postgres-cdc").options(url=database, tables="public.actors", slot="actors")
    changes = source.load().where("op != 'd' or value is null")
    return changes.selectExpr("get_json_object(key, '$.id') key", "get_json_object(value, '$.after') value")


def enriched(actors: DataFrame, colleges: DataFrame) -> DataFrame:
    actor = actors.select("key", from_json("value", ACTOR).alias("actor"))
    # Broadcast: a join that shuffles would share out the changes of one actor, and they would lose their order.
    joined = actor.join(broadcast(colleges), col("actor.college_id") == colleges.id, "left")
    enriched = struct("actor.id", "actor.name", colleges.name.alias("college"), "city")
    return joined.select("key", when(col("actor").isNotNull(), to_json(enriched)).alias("value"))


def start(spark: SparkSession, bootstrap: str, database: str, storage: str, once: bool = False) -> list[StreamingQuery]:
    colleges = spark.read.format("ottla-postgres").options(url=database, table="colleges").load()

    def begin(name: str, writer: DataStreamWriter) -> StreamingQuery:
        writer = writer.queryName(name).option("checkpointLocation", f"{storage}/checkpoints/{name}")
        if not once:
            return writer.start()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()  # one after the other: what one writes, the next one reads
        return query

    def to_topic(stream: DataFrame, name: str) -> DataStreamWriter:
        return stream.writeStream.format("ottla").options(topic=name, **{"kafka.bootstrap.servers": bootstrap})

    def result(group: str) -> DataFrame:
        stream = topic(spark, bootstrap, "actors-enriched", groupId=group)
        return stream.select("key", from_json("value", ENRICHED).alias("a"))

    columns = ("cast(key as int) id", "a.name", "a.college", "a.city", "a is null gone")
    rows = result("table").selectExpr(*columns).writeStream.format("ottla-postgres")
    files = result("hadoop").selectExpr("key", "a.*").writeStream.foreachBatch(ParquetEpochs(f"{storage}/parquet"))
    return [
        begin("capture", to_topic(captured(spark, database), "actors")),
        begin("enrich", to_topic(enriched(topic(spark, bootstrap, "actors"), colleges), "actors-enriched")),
        begin("hadoop", files),
        begin("table", rows.options(url=database, table="actors_enriched", key="id", deletedColumn="gone")),
    ]


if __name__ == "__main__":
    session = SparkSession.builder.appName("actors").getOrCreate()
    bootstrap, database, storage = sys.argv[1:4]
    for query in start(session, bootstrap, database, storage):
        query.awaitTermination()
