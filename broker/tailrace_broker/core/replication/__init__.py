"""How a range's replicas keep one log: machines that know `core.ring` and `core.log`, no more."""
