"""What Tailrace costs: one module per question, each with its sketch of the expected cost on top.

A question starts a broker process of its own on a real disk, loads it over loopback from another
process, reads the broker's CPU time from the kernel and appends one row to `results.jsonl`.
`python -m benchmarks` asks all; `python -m benchmarks ndjson` one. Needs Linux.
"""
