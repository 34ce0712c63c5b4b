"""One partition's log on one disk, in Apache Kafka's formats: `partition_log` is the door."""
