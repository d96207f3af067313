"""Requests for logs that other brokers lead: forwarded to them, and executed for others.

`core.forwarding` decides. Above `topics/`, whose logs it appends to.
"""
