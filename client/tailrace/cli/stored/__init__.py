"""Reads a broker's files without a broker, for `dump` and `verify`."""
