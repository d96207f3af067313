"""The HTTP protocol as values and bytes: requests, answers, formats. No I/O."""
