"""Composition: settings, logs, metrics, the broker that the listeners see, the loop."""
