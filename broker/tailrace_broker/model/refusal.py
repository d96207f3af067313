"""The outcome of a command that changed nothing."""

import msgspec


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a command changed nothing. `reason` is fixed, for programs; `detail` is for people."""

    reason: str
    detail: str
