"""Lets Spark find `format("tailrace")`: it imports every `pyspark_*` package for `DefaultSource`.

A failing import here would break the lookup of every Python data source, so: nothing else.
"""

from tailrace.spark.source import TailraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
