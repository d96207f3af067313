"""The broker: one process of the ring. It keeps partitions on disk and serves them over HTTP.

Layers; imports point down only: app > (net | storage) > core > codec > memory > model.
"""
