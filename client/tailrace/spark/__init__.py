"""Spark's way in: `spark.read.format("tailrace")`, and jobs to run or to copy.

`options` and `offsets` are pure; only `source` and `jobs` import pyspark. May import `tailrace`'s
`arrow`, `errors`, `requests` and `sync`.
"""
