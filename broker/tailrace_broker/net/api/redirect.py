"""`Tailrace-Redirect`: who asks wants the name of the leader, and no request forwarded."""

from typing import Annotated

from msgspec import Meta

from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.http.router import Call, Parameters, shortened

REDIRECT = "Tailrace-Redirect"

# How `RedirectHeader` is described.
RedirectValue = Annotated[
    int,
    Meta(
        ge=1,
        le=1,
        description="1: a broker that does not lead the partition answers 421, which names the "
        "leader, in place of asking it.",
    ),
]

_REDIRECT = REDIRECT.lower().encode()


class RedirectHeader(Parameters, frozen=True, rename={"redirect": REDIRECT}):
    """Whether the request may be forwarded."""

    redirect: RedirectValue | None = None


def wants_redirect(call: Call) -> bool:
    """Whether the request is for this broker alone. InvalidParameterError."""
    value = call.headers.get(_REDIRECT)
    if value is None:
        return call.is_forwarded
    if value != b"1":
        shown = shortened(value.decode("latin-1"))
        raise InvalidParameterError(
            f"{REDIRECT} is {shown}; it is 1, or left out", parameter=REDIRECT
        )
    return True
