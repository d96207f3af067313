"""Brokers on this machine as one ring: start, found, wait until they serve, watch, stop.

`TOP/0` to `TOP/N-1` hold their data, `TOP/0.log` to `TOP/N-1.log` have what they say,
`TOP/ring.json` how many they are and the first one's port, and `TOP/ring-secret` what they prove to
each other. What the brokers themselves have committed is in `TOP/0/ring.json` and so on,
against a wrong number in the first. A ring of one needs none of these files, and speaks on stderr.
No broker outlives its parent.
"""

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import NamedTuple, Self

from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.local.broker import (
    HOST,
    POLL_INTERVAL_S,
    BrokerEndedError,
    LocalBroker,
    check_ports_are_free,
    is_in_use,
    make_directory,
)
from tailrace.protocol.ring_values import RingDetails
from tailrace.sync import Client

PORT_STRIDE = 10  # brokers of a local ring are that far apart (docs/operations.md)
BROKERS_MAX = 12  # on one machine
SECRET_BYTES = 32
SECRET_FILE = "ring-secret"  # noqa: S105  # its name
RING_FILE = "ring.json"
SLOW_S = 10.0  # whoever waits longer sees for what


def _report_nothing(_: str) -> None:
    pass


class EndedBroker(NamedTuple):
    """A broker that ended, and why; nobody stopped it."""

    ordinal: int
    error: BrokerEndedError


class LocalRing:
    """`broker_count` brokers with their data below `top`, their listeners from `port` on.

    As a context manager it runs for the block.
    """

    def __init__(
        self,
        top: Path,
        *,
        broker_count: int,
        port: int,
        settings: Mapping[str, str | float] | None = None,
    ) -> None:
        """Nothing is started or written yet."""
        self.top = top
        self.port = port
        self.secret: str | None = None
        self.brokers: list[LocalBroker] = []
        self._broker_count = broker_count
        self._settings = dict(settings or {})
        self._stack = ExitStack()
        self._ended: Queue[EndedBroker] = Queue()
        self._report: Callable[[str], None] = _report_nothing
        self._slow_at_s = float("inf")

    def __enter__(self) -> Self:
        self._prepare()
        with ExitStack() as stack:
            for broker in self.brokers:
                stack.enter_context(broker)
            self._stack = stack.pop_all()
        for ordinal, broker in enumerate(self.brokers):
            threading.Thread(target=self._watch, args=(ordinal, broker), daemon=True).start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._terminate_all()
        self._stack.__exit__(error_type, error, traceback)

    def client(self, ordinal: int = 0) -> Client:
        """To one of its brokers, with the secret."""
        return Client(self.brokers[ordinal].url, token=self.secret)

    def wait_ready(self, report: Callable[[str], None] = _report_nothing) -> None:
        """Found the ring when it is new, then wait until all serve: as long as they live.

        `report`: called once, when that takes long. BrokerEndedError; TailraceError when it cannot
        be founded, or is one of another number of brokers.
        """
        self._report = report
        self._slow_at_s = time.monotonic() + SLOW_S
        if self._broker_count > 1:
            self._found_if_new()
        for ordinal, broker in enumerate(self.brokers):
            with Client(broker.url) as client:
                while not client.is_ready():
                    self._pause(ordinal, "to be ready")
        if self._broker_count > 1:
            self._note_committed()

    def wait_ended(self) -> EndedBroker:
        """Wait until a broker exits, and report it once."""
        return self._ended.get()

    def living(self) -> list[int]:
        """The ordinals of brokers that run, also of those that another process has started."""
        return [
            number
            for number, broker in enumerate(self.brokers)
            if broker.is_running() or is_in_use(broker.data_dir)
        ]

    def _prepare(self) -> None:
        """TailraceError: the data belongs to a different ring, or a broker's own."""
        if (self.top / "data" / "meta.json").exists():
            raise TailraceError(
                f"{self.top} is a broker's own directory: choose another with --data, which will "
                "have one for each broker"
            )
        begun_count = begun_with(self.top)
        if begun_count not in (None, self._broker_count):
            were = "1 broker" if begun_count == 1 else f"{begun_count} brokers"
            raise TailraceError(
                f"{self.top} holds a ring of {were}: start it with --brokers {begun_count}, or "
                "choose another directory with --data"
            )
        settings: list[dict[str, str | float]] = [{}]
        is_ring = self._broker_count > 1
        ordinals = range(self._broker_count)
        for ordinal in ordinals:  # before anything is written: a start that fails leaves nothing
            check_ports_are_free(self.port + PORT_STRIDE * ordinal, has_peers=is_ring)
        if is_ring:
            for each in [self.top, *(self.top / str(ordinal) for ordinal in ordinals)]:
                make_directory(each)
            self.secret = _kept_secret(self.top / SECRET_FILE)
            self._write_count(self.top, port=self.port)
            settings = [member_settings(ordinal, self.secret) for ordinal in ordinals]
        elif begun_count is None and _has_files_of_several(self.top):  # they have never had data
            self._write_count(self.top)
        self.brokers = [
            LocalBroker(
                self.top / str(ordinal),
                port=self.port + PORT_STRIDE * ordinal,
                settings={**self._settings, **own},
                log_path=self.top / f"{ordinal}.log" if is_ring else None,
            )
            for ordinal, own in enumerate(settings)
        ]

    def _write_count(self, directory: Path, **more: int) -> None:
        document = {"brokers": self._broker_count, **more}
        (directory / RING_FILE).write_text(json.dumps(document) + "\n")

    def _note_committed(self) -> None:
        """Beside each broker's data. TailraceError: another number is committed."""
        with self.client() as client:
            committed = client.ring().brokers
        if committed not in (None, self._broker_count):
            raise _wrong_count(self.top, said=self._broker_count, committed=committed)
        if committed is not None:
            for broker in self.brokers:
                self._write_count(broker.data_dir)

    def _found_if_new(self) -> None:
        """An empty broker of a ring that is there is admitted automatically."""
        with self.client() as client:
            ring = self._ring_of(client)
            while ring.cluster_id is None:
                try:
                    ring = client.found(self._broker_count)
                except ProblemError as error:
                    if error.type == "ring-exists":
                        return
                    if not error.retriable:
                        raise
                    self._pause(0, "to found the ring")

    def _ring_of(self, client: Client) -> RingDetails:
        """When the broker's listeners are open."""
        while True:
            with suppress(ConnectionFailedError):
                return client.ring()
            self._pause(0, "to answer")

    def _pause(self, ordinal: int, what: str) -> None:
        """Before the broker is asked again. BrokerEndedError."""
        self._check_living()
        if time.monotonic() >= self._slow_at_s:
            self._slow_at_s = float("inf")
            self._report(waiting_note(self.brokers[ordinal], ordinal, what))
        time.sleep(POLL_INTERVAL_S)

    def _check_living(self) -> None:
        """BrokerEndedError."""
        for broker in self.brokers:
            if not broker.is_running():
                broker.wait()

    def _watch(self, ordinal: int, broker: LocalBroker) -> None:
        try:
            broker.wait()
        except BrokerEndedError as error:
            self._ended.put(EndedBroker(ordinal, error))

    def _terminate_all(self) -> None:
        """Together: each then waits for its own end only."""
        for broker in self.brokers:
            broker.terminate()


def member_settings(ordinal: int, secret: str) -> dict[str, str | float]:
    """What makes a broker one of a local ring."""
    return {
        "peer_host": HOST,
        "port_stride": PORT_STRIDE,
        "ring_secret": secret,
        "ordinal": ordinal,
    }


def waiting_note(broker: LocalBroker, ordinal: int, what: str) -> str:
    """What is said once when a broker takes long."""
    log = "" if broker.log_path is None else f", its log: {broker.log_path}"
    return (
        f"still waiting for broker {ordinal} {what}{log}; its state: tailrace ring status "
        f"--url {broker.url}"
    )


def begun_with(top: Path) -> int | None:
    """How many brokers have their data here; None: none yet. TailraceError: nobody knows."""
    begun = [ordinal for ordinal in range(BROKERS_MAX) if _has_data(top / str(ordinal))]
    if not begun:
        return None
    committed = _committed_count(top, begun)
    try:
        said = _count_in(top / RING_FILE)
    except FileNotFoundError:
        if begun == [0] and committed is None and not _has_files_of_several(top):
            return 1
        raise _unsaid_count(top) from None
    if committed not in (None, said):
        raise _wrong_count(top, said=said, committed=committed)
    if begun[-1] >= said:
        raise TailraceError(
            f"{top / RING_FILE} says {said} brokers, but {top / str(begun[-1])} holds the data of "
            'one more: write {"brokers": N} into the file, as many as the ring was founded with'
        )
    return said


def missing_members(top: Path) -> list[tuple[Path, str]]:
    """Return the directories that brokers of the ring below `top` must have and have not.

    With what says so: a file that counts the brokers. None when no broker has begun there.
    """
    begun = [ordinal for ordinal in range(BROKERS_MAX) if _has_data(top / str(ordinal))]
    counts: dict[Path, int] = {}
    for file in (top / RING_FILE, *(top / str(ordinal) / RING_FILE for ordinal in begun)):
        with suppress(FileNotFoundError, TailraceError):
            counts[file] = _count_in(file)
    if not begun or not counts:
        return []
    file = max(counts, key=lambda count: counts[count])
    directories = (top / str(ordinal) for ordinal in range(counts[file]))
    return [
        (directory, str(file)) for directory in directories if not (directory / "data").is_dir()
    ]


def _count_in(file: Path) -> int:
    """FileNotFoundError; TailraceError: it cannot be read, or does not say it."""
    try:
        broker_count = json.loads(file.read_text())["brokers"]
        if type(broker_count) is int and 1 <= broker_count <= BROKERS_MAX:
            return broker_count
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TailraceError(
            f"{file} cannot be read ({error.strerror}): repair that, or choose another directory "
            "with --data"
        ) from error
    except (ValueError, LookupError, TypeError):
        pass
    raise _unsaid_count(file.parent)


def _committed_count(top: Path, begun: list[int]) -> int | None:
    """As the first of these brokers has it that does; None: by no broker known."""
    for ordinal in begun:
        with suppress(FileNotFoundError, TailraceError):  # it is only there to compare with
            return _count_in(top / str(ordinal) / RING_FILE)
    return None


def _has_files_of_several(top: Path) -> bool:
    return any((top / name).exists() for name in (RING_FILE, SECRET_FILE, "0.log"))


def _unsaid_count(top: Path) -> TailraceError:
    return TailraceError(
        f'{top / RING_FILE} does not say how many brokers there are: write {{"brokers": N}} into '
        f"it, as many as there are directories beside it; at most {BROKERS_MAX}"
    )


def _wrong_count(top: Path, *, said: int, committed: int | None) -> TailraceError:
    return TailraceError(
        f"{top / RING_FILE} says {said} brokers, but the ring is one of {committed}: write "
        f'{{"brokers": {committed}}} into it'
    )


def _has_data(data_dir: Path) -> bool:
    """A broker has begun here: an empty directory is only what a start made for one."""
    try:
        return any(data_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _kept_secret(path: Path) -> str:
    """Made when it is not there; readable for its owner alone. TailraceError: it cannot be one."""
    try:
        secret = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return _new_secret(path)
    except OSError as error:
        raise TailraceError(
            f"{path} cannot be read ({error.strerror}): repair it, or remove it: then a new secret "
            "is made"
        ) from error
    if not re.fullmatch(r"[!-~]+", secret):
        raise TailraceError(
            f"{path} is no secret, which is visible ASCII without spaces: remove the file, then a "
            "new one is made"
        )
    return secret


def _new_secret(path: Path) -> str:
    secret = secrets.token_urlsafe(SECRET_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret
