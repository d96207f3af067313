"""The broker-wide journal of small appends."""
