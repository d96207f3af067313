"""A bug ends the process in every phase of its life; it is provoked at the system's calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker.fixtures import free_port_base

pytestmark = pytest.mark.integration

# A broker whose `os.<call>` fails as only a bug can: from the start, or once the broker has
# stored an event and is asked to stop.
BROKER_WITH_A_BUG = """
import os, signal, sys, threading, time
from tailrace.sync import Client
from tailrace_broker.app.main import main

def fail(call):
    def fail(*_):
        raise ZeroDivisionError("injected")
    setattr(os, call, fail)

def use(call):
    with Client("http://127.0.0.1:" + os.environ["TAILRACE_PORT"]) as client:
        while not client.is_ready():
            time.sleep(0.02)
        client.produce("t", b"1")
    fail(call)
    os.kill(os.getpid(), signal.SIGTERM)

phase, call = sys.argv[1:]
if phase == "start":
    fail(call)
else:
    threading.Thread(target=use, args=(call,), daemon=True).start()
sys.exit(main())
"""


def end_of_broker(data_dir: Path, phase: str, call: str) -> tuple[int, str]:
    """Exit code and standard error of a broker with a bug; TimeoutExpired if it lives on."""
    settings = {"TAILRACE_DATA_DIR": str(data_dir), "TAILRACE_PORT": str(free_port_base())}
    ended = subprocess.run(
        [sys.executable, "-c", BROKER_WITH_A_BUG, phase, call],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr


def test_a_bug_at_the_stop_or_in_recovery_ends_the_process(tmp_path: Path) -> None:
    for phase, call in (("stop", "fsync"), ("start", "preadv")):
        exit_code, said = end_of_broker(tmp_path, phase, call)

        assert exit_code == 1
        assert "ZeroDivisionError: injected" in said
