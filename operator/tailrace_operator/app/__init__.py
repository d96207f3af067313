"""Handlers, workers and the reconcile pass; the only folder that knows kopf."""
