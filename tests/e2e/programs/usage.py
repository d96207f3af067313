"""Runs in the operator's container: CPU and memory of its process 1 over a while, as JSON.

`SECONDS`. From /proc: user and system time, resident memory.
"""

import json
import os
import sys
import time
from pathlib import Path


def cpu_s() -> float:
    """What process 1 has used since it began."""
    fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(seconds: float) -> None:
    """The while is what is measured."""
    before_s, started_s = cpu_s(), time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - started_s
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/1/status").read_text().splitlines()
        if ":" in line
    )
    rss_mib = int(status["VmRSS"].split()[0]) / 1024
    cpu_percent = 100 * (cpu_s() - before_s) / elapsed_s
    print(json.dumps({"cpuPercent": round(cpu_percent, 2), "rssMiB": round(rss_mib, 1)}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
