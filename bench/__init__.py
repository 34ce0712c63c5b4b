"""Ottla and Apache Kafka under the same load, on the same machine, in the same run."""
