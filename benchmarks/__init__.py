"""What Tailrace costs: one module per question, each with its sketch of the expected cost on top.

A question starts broker processes of its own on a real disk, loads them over loopback from another
process and reads their CPU time from the kernel. `run()` yields a row of figures for each variant.
`python -m benchmarks` asks all, `python -m benchmarks ndjson` one. `--store` appends the rows to
`results.jsonl` and makes the table of docs/performance.md from it; `--page` only does the latter.
Needs Linux.

These measure the broker: the generator (`load.py`) costs 12 µs of CPU a request and speaks plain
HTTP to a process of this machine. `tailrace bench` measures what the Python client gets of any
broker or ring, at 250 µs a request: as a generator it would be the bottleneck here.
"""
