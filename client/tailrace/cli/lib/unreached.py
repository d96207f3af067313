"""What to do about a broker that does not answer, when it is one of a ring."""

from pathlib import Path

from tailrace.errors import ConnectionFailedError

LOCAL_RING = Path(".tailrace")  # where `tailrace dev` keeps its data by default


def with_ring_remedy(error: ConnectionFailedError, url: str) -> ConnectionFailedError:
    """The same error; of a ring's broker it says which, and what to do. `url`: the one given."""
    if type(error) is not ConnectionFailedError:  # the others know what is wrong
        return error
    from tailrace.local.member import absent_ordinal

    ordinal = absent_ordinal(LOCAL_RING, error.url)
    failed = f"does not answer at {error.url} ({error.reason})."
    if ordinal is not None:
        start = f"tailrace dev start {ordinal}"
        error.args = (f"broker {ordinal} of the ring in {LOCAL_RING} {failed} Start it: {start}",)
    elif error.url != url:
        error.args = (f"a broker of the ring {failed} See which ones are up: tailrace ring status",)
    return error
