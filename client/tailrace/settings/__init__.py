"""Settings and options as people write them.

Charter: imports the standard library alone.
"""
