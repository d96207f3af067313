"""The brokers' admin API."""
