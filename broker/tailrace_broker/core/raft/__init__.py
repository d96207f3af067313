"""Chained Raft, the consensus of a ring's metadata. Pure; docs/decisions/011."""
