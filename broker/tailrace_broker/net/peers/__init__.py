"""Connections between the brokers of a ring."""
