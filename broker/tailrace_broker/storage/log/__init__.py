"""A partition's log: journal, pending tail and segments as one."""
