"""A promise that was broken."""


class Violation(AssertionError):
    """What should never be true is."""


def check(is_so: bool, otherwise: str) -> None:
    """Violation, with `otherwise`, unless it is so."""
    if not is_so:
        raise Violation(otherwise)
