"""Runs in a pod that sees the processes of its node: SIGKILL for the processes of another pod.

`POD_UID`. Python's alone: not that of the pod itself, which the node calls `pause`. Prints the
number of those that it found.
"""

import os
import signal
import sys
from pathlib import Path


def is_of(process: Path, pod_uid: str) -> bool:
    """Whether its control group is the pod's; both ways in which nodes write them."""
    try:
        groups = (process / "cgroup").read_text().replace("_", "-")
        return pod_uid in groups and b"python" in (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False


def main(pod_uid: str) -> None:
    """Once."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    found = [int(process.name) for process in processes if is_of(process, pod_uid)]
    for process_id in found:
        os.kill(process_id, signal.SIGKILL)
    print(len(found))


if __name__ == "__main__":
    main(sys.argv[1])
