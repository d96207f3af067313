"""A network of this thread's own, in which packets from one broker to another can be dropped.

A network namespace with nothing but loopback (network_namespaces(7)): processes and threads that
are started inside belong to it. Each broker knows each other one by an address that only it uses,
so that a connection says who has dialed whom. Needs root and iptables.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tailrace.local.broker import HOST, PEER_LISTENERS
from tailrace.local.ring import PORT_STRIDE

CLONE_NEWNET = 0x40000000  # unshare(2)
PEERS = "127.1.0.0/16"
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Network:
    """Between the brokers of a ring whose first one has the base port `port`."""

    port: int

    def cut(self, source: int, target: int, listeners: Sequence[int] = PEER_LISTENERS) -> None:
        """Drop what one broker sends to another, from now on, whoever has dialed."""
        for listener in listeners:
            self._drop(source, target, listener, "ORIGINAL")
            self._drop(target, source, listener, "REPLY")

    def cut_dialled(self, source: int, target: int, listeners: Sequence[int]) -> None:
        """Drop what one broker sends on connections that it dials to the other, and no others."""
        for listener in listeners:
            self._drop(source, target, listener, "ORIGINAL")

    def heal(self) -> None:
        """Drop nothing any more."""
        _iptables("--flush", "INPUT")

    def _drop(self, dialed_by: int, dialed: int, listener: int, direction: str) -> None:
        port = self.port + PORT_STRIDE * dialed + listener
        host = peer_host(dialed_by).format(ordinal=dialed)
        _iptables(
            *("--append", "INPUT", "--protocol", "tcp", "--match", "conntrack"),
            *("--ctorigdst", host, "--ctorigdstport", str(port), "--ctdir", direction),
            *("--jump", "DROP"),
        )


def peer_host(ordinal: int) -> str:
    """Return where a broker finds the others, as its setting `peer_host` has it."""
    return f"127.1.{ordinal}.1{{ordinal}}"


@contextmanager
def own_network() -> Iterator[None]:
    """Let what is started while the block lasts be in a network of its own; skip without root."""
    if os.geteuid() != 0 or not shutil.which("iptables"):
        pytest.skip("only root makes a network namespace, and iptables cuts it")
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if _LIBC.unshare(CLONE_NEWNET):
        os.close(outside)
        pytest.skip(f"no network namespace here: {os.strerror(ctypes.get_errno())}")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        rule = ("--table", "nat", "--append", "OUTPUT", "--protocol", "tcp")
        redirected = ("--destination", PEERS, "--jump", "DNAT", "--to-destination", HOST)
        if refused := _iptables(*rule, *redirected, check=False):
            pytest.skip(f"no address translation here: {refused}")
        yield
    finally:
        left = _LIBC.setns(outside, CLONE_NEWNET)
        os.close(outside)
        assert left == 0, os.strerror(ctypes.get_errno())


def _iptables(*arguments: str, check: bool = True) -> str:
    """Return what it complains of; nothing when it succeeds."""
    done = subprocess.run(["iptables", *arguments], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stderr.strip() if done.returncode else ""
