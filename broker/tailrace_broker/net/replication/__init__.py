"""Connections of followers to the leaders of their ranges, on port 9256."""
