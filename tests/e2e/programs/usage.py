"""Runs in the operator's container: the operator's CPU and memory over a while, as JSON.

`SECONDS`. From /proc: user and system time, resident memory.
"""

import json
import os
import sys
import time
from pathlib import Path


def operator() -> Path:
    """Its process: the pod's first process was replaced."""
    for process in Path("/proc").glob("[0-9]*"):
        if (process / "cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"tailrace_operator"]:
            return process
    raise LookupError("the operator does not run")


def cpu_s(process: Path) -> float:
    """What it has used since it began."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(seconds: float) -> None:
    """The while is what is measured."""
    process = operator()
    before_s, started_s = cpu_s(process), time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - started_s
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    rss_mib = int(status["VmRSS"].split()[0]) / 1024
    cpu_percent = 100 * (cpu_s(process) - before_s) / elapsed_s
    print(json.dumps({"cpuPercent": round(cpu_percent, 2), "rssMiB": round(rss_mib, 1)}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
