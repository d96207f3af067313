"""The coordinator of consumer groups: runs the machines of `core.groups` over a log."""
