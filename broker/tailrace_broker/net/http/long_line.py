"""Which line of a body makes it too large: found while the body is discarded."""


class LongLine:
    """Looks for a line of more than `bytes_max` bytes; `number` counts from 1, None: none yet."""

    def __init__(self, bytes_max: int) -> None:
        self.number: int | None = None
        self._bytes_max = bytes_max
        self._ended_count = 0
        self._begun_bytes = 0  # of the line that has not ended

    def add(self, chunk: bytes | bytearray) -> None:
        """Check the next bytes of the body."""
        if self.number is not None:
            return
        first, *others = chunk.split(b"\n")
        sizes = [self._begun_bytes + len(first), *map(len, others)]
        if max(sizes) > self._bytes_max:
            index = next(index for index, size in enumerate(sizes) if size > self._bytes_max)
            self.number = self._ended_count + index + 1
        self._ended_count += len(others)
        self._begun_bytes = sizes[-1]
