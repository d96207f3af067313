"""What a user runs first, and may copy. `python -m examples.up` is the main job, `make up`."""
