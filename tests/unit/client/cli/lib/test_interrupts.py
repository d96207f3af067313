"""Ctrl-C that takes effect where nothing is half done."""

import signal

import pytest

from tailrace.cli.lib.interrupts import Interrupts


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_waits_for_a_check_and_the_second_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        assert signal.getsignal(signal.SIGINT) is before
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_a_wait_also_when_it_came_before() -> None:
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.waiting():
        interrupt()
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupts.sleep(60.0)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            interrupt()
            interrupts.check()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
