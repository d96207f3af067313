"""Tailrace's client: reach a broker by HTTP from Python, the shell and Spark.

Charter: `arrow`, `arrow_records` and `spark` add their extras; all else, the base, imports the
standard library alone. Nothing here imports the broker.

    from tailrace.sync import Client
    with Client("http://127.0.0.1:9250") as client:
        client.produce("flights", b'{"origin":"SFO"}', key="SFO")
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
