"""The log of one partition on one disk, in Apache Kafka's formats. Other rooms use `partition_log`."""
