"""Pipelines: a YAML file that is compiled to PySpark, checked before Spark starts, and run."""
