"""Bytes <-> model, one file per format. Pure: no I/O, no clock."""
