"""Mutation testing: changes one line of the broker at a time, and runs the tests that must fail."""
