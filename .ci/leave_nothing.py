"""Run a command; end what it leaves running and fail when there is something. Linux only.

As a child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) this process becomes the parent of every
orphan below it, so none can hide. Standard library only: it runs before `make setup`.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0  # for helpers that are on their way out when the command has ended


def main(command: list[str]) -> int:
    """The command's exit code, or 1 when it left processes behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    child = subprocess.Popen(command)
    try:
        exit_code = reap_until_end_of(child.pid)
        left = wait_for_none(time.monotonic() + GRACE_SECONDS)
    finally:
        end_all()
    for line in left:
        print(f"ci: still running: {line}", file=sys.stderr)
    return exit_code or bool(left)


def reap_until_end_of(child_pid: int) -> int:
    """Collect orphans as they end, and the child's own exit code."""
    while True:
        pid, status = os.wait()
        if pid == child_pid:
            return abs(os.waitstatus_to_exitcode(status))


def wait_for_none(deadline: float) -> list[str]:
    """What still runs at the deadline; empty at once when nothing does."""
    while running := children():
        if time.monotonic() > deadline:
            return [f"{pid} {command_line(pid)}" for pid in running]
        time.sleep(0.05)
    return []


def end_all() -> None:
    """SIGKILL generation by generation: orphans of the killed become our children."""
    while running := children():
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children() -> list[int]:
    """Our living children; collects the dead ones."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return []
    own = Path("/proc/self/task") / str(os.getpid()) / "children"
    return [int(pid) for pid in own.read_text().split()]


def command_line(pid: int) -> str:
    """As `ps` shows it."""
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    return raw.replace(b"\0", b" ").decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
