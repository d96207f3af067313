"""Composition: settings, logs, metrics, the broker that the doors see, the loop."""
