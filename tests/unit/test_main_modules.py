"""`python -m tailrace_broker` and `python -m tailrace_operator`, as a container starts them."""

import runpy
import signal
import sys
from types import ModuleType

import pytest


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("tailrace_broker", "tailrace_broker.app.main"),
        ("tailrace_operator", "tailrace_operator.app.main"),
    ],
)
def test_a_stop_is_heard_from_the_first_moment(
    package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_stopped() -> None:
        signal.raise_signal(signal.SIGTERM)

    program = ModuleType(module)
    program.main = is_stopped  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, program)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(package, run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ended.value.code == 128 + signal.SIGTERM
