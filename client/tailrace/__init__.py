"""Tailrace's client: reach a broker by HTTP from Python, the shell and Spark.

Charter: `aio*`, `arrow` and `spark` add their extras; all else, the base, imports the standard
library alone. Nothing here imports the broker. These names are loaded when they are used, so that
the command line starts fast.

    import tailrace

    with tailrace.connect("http://127.0.0.1:9250") as client:
        client.produce("flights", b'{"origin":"SFO"}', key="SFO")
        newest = client.read("flights", last=10_000).to_pandas()
        with tailrace.Consumer(client, "my-group", "flights") as consumer:
            for record in consumer:
                print(record.key, record.json())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Unpack

    from tailrace.consumer import Consumer
    from tailrace.errors import TailraceError
    from tailrace.producer import Producer
    from tailrace.protocol.endpoint import ClientOptions
    from tailrace.protocol.records_ndjson import Record
    from tailrace.reading import Reading
    from tailrace.sansio.consuming import Assignment
    from tailrace.sync import Client

__all__ = [
    "Assignment",
    "Client",
    "Consumer",
    "Producer",
    "Reading",
    "Record",
    "TailraceError",
    "__version__",
    "connect",
]

__version__ = "0.1.0"

DEFAULT_URL = "http://127.0.0.1:9250"
_MODULES = {
    "Assignment": "tailrace.sansio.consuming",
    "Client": "tailrace.sync",
    "Consumer": "tailrace.consumer",
    "Producer": "tailrace.producer",
    "Reading": "tailrace.reading",
    "Record": "tailrace.protocol.records_ndjson",
    "TailraceError": "tailrace.errors",
}


def connect(url: str | None = None, **options: "Unpack[ClientOptions]") -> "Client":
    """A blocking client; it connects when it is first used. ValueError: a bad URL or option.

    What is not given: `url` is $TAILRACE_URL or http://127.0.0.1:9250, `token` $TAILRACE_TOKEN,
    `ca_file` $TAILRACE_CA_FILE. For asyncio: `tailrace.aio.Client`.
    """
    import os

    from tailrace.sync import Client

    if options.get("token") is None:
        options["token"] = os.environ.get("TAILRACE_TOKEN") or None
    if options.get("ca_file") is None:
        options["ca_file"] = os.environ.get("TAILRACE_CA_FILE") or None
    return Client(url or os.environ.get("TAILRACE_URL") or DEFAULT_URL, **options)


def __getattr__(name: str) -> Any:
    """What `__all__` names, from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f'module "tailrace" has no attribute "{name}"')
    return getattr(import_module(_MODULES[name]), name)
