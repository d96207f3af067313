"""Requests for logs that another broker leads: when they are sent, repeated, or given up. Pure."""
