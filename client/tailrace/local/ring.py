"""Brokers on this machine as one ring: start, found, wait until they serve, watch, stop.

`TOP/0` to `TOP/N-1` hold their data, `TOP/0.log` to `TOP/N-1.log` have what they say,
`TOP/ring.json` how many they are and the first one's port, and `TOP/ring-secret` what they prove to
each other. What the brokers themselves have committed is in `TOP/0/ring.json` and so on,
against a wrong number in the first. A broker alone has no secret, listens to no others, and speaks
on stderr; when its ring is to grow it is started again as one of several. No broker outlives its
parent.
"""

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import NamedTuple, Self

from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.local.broker import (
    HOST,
    PEER_LISTENERS,
    POLL_INTERVAL_S,
    BrokerEndedError,
    LocalBroker,
    check_listeners_are_free,
    check_ports_are_free,
    is_in_use,
    is_listening,
    make_directory,
)
from tailrace.protocol.ring_values import RingDetails
from tailrace.sync import Client

PORT_STRIDE = 10  # brokers of a local ring are that far apart (docs/operations.md)
BROKERS_MAX = 12  # on one machine
SECRET_BYTES = 32
SECRET_FILE = "ring-secret"  # noqa: S105  # its name
RING_FILE = "ring.json"
WANTED_FILE = "wanted.json"
RETIRED_SUFFIX = ".retired"
MIN_IN_SYNC_REPLICAS = 2  # of a topic, by default
ASKED_S = 3.0  # until nobody is there who starts another broker
FOUNDABLE = "waiting to be founded"
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
        self._joining = 0  # so many run, some of which may not be of the ring yet; 0: none
        self._settings = dict(settings or {})
        self._stack = ExitStack()
        self._ended: Queue[EndedBroker] = Queue()
        self._report: Callable[[str], None] = _report_nothing
        self._slow_at_s = float("inf")
        self._is_new = True
        self._replaced: LocalBroker | None = None  # its end is nothing to report

    def __enter__(self) -> Self:
        self._prepare()
        with self._stack as stack:
            for ordinal, broker in enumerate(self.brokers):
                self._run(ordinal, broker)
            self._stack = stack.pop_all()
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

    def wait_ready(self, report: Callable[[str], None]) -> None:
        """Found the ring when it is new, then wait until all serve: as long as they live.

        `report`: called once, when that takes long. BrokerEndedError; TailraceError when it cannot
        be founded, or is one of another number of brokers.
        """
        self._report = report
        self._slow_at_s = time.monotonic() + SLOW_S
        if self.secret is not None:
            self._found_if_new()
        for ordinal, broker in enumerate([*self.brokers]):
            with Client(broker.url) as client:
                while broker in self.brokers and not client.is_ready():
                    self._pause(ordinal, "to be ready")
        if self.secret is not None:
            self._note_committed()
            self._wait_in_sync()

    def wait_ended(self, timeout_s: float) -> EndedBroker | None:
        """Wait until a broker exits, and report it once; None: none has within that time."""
        with suppress(Empty):
            return self._ended.get(timeout=timeout_s)
        return None

    def grow_if_asked(self) -> list[int]:
        """Start the brokers that `tailrace ring grow` waits for; their ordinals. PortTakenError.

        A broker alone is started again before them, so that it listens to them.
        """
        wanted = _take_wanted(self.top)
        if wanted is None:
            return []
        self.take_away_left()
        ordinals = list(range(len(self.brokers), min(wanted, BROKERS_MAX)))
        for ordinal in ordinals:
            check_ports_are_free(self.port + PORT_STRIDE * ordinal, has_peers=True)
        first = [0] if ordinals and self.secret is None else []
        if first:
            self._start_with_peers()
        for ordinal in ordinals:
            broker = self._member(ordinal)
            make_directory(broker.data_dir)
            self._joining = ordinal + 1
            self._write_top()
            self._run(ordinal, broker)
            self.brokers.append(broker)
        return first + ordinals

    def _start_with_peers(self) -> None:
        """The one broker, which has run alone, as one of several. PortTakenError: it runs on."""
        check_listeners_are_free(self.port, PEER_LISTENERS)
        self.secret = _kept_secret(self.top / SECRET_FILE)
        self._replaced, self.brokers[0] = self.brokers[0], self._member(0)
        with suppress(BrokerEndedError):  # it has said why, and its start repairs it
            self._replaced.stop()
        self._write_top()
        self._run(0, self.brokers[0])

    def _run(self, ordinal: int, broker: LocalBroker) -> None:
        """Run the broker until the ring ends."""
        self._stack.enter_context(broker)
        threading.Thread(target=self._watch, args=(ordinal, broker), daemon=True).start()

    def note_size(self) -> int:
        """How many brokers the ring has now; the next start has as many."""
        committed = self._committed()
        if committed is not None and committed != self._broker_count:
            self._joining = len(self.brokers)
            self._adopt(committed)
            for broker in self.brokers[:committed]:
                self._write_count(broker.data_dir)
        return self._broker_count

    def _adopt(self, committed: int) -> None:
        self._broker_count = committed
        self._write_top()

    def has_left(self, ordinal: int) -> bool:
        """Whether that broker has left the ring for good; its process ends with it."""
        if ordinal < self.note_size():
            return False
        with suppress(ConnectionFailedError, ProblemError), self.client() as client:
            return all(each.ordinal != ordinal for each in client.ring().registrations)
        return False

    def take_away_left(self) -> None:
        """The disks of brokers that have left can never come back: others begin with new ones.

        Their data stays beside those, until somebody removes it.
        """
        while not self._is_up(last := self.brokers[-1]) and self.has_left(len(self.brokers) - 1):
            self.brokers.pop()
            data_dir = last.data_dir
            names = (f"{data_dir.name}{RETIRED_SUFFIX}-{number}" for number in count(1))
            free = (path for name in names if not (path := self.top / name).exists())
            data_dir.rename(next(free))
        self._joining = len(self.brokers)
        self._adopt(self._broker_count)

    def _committed(self) -> int | None:
        with suppress(ConnectionFailedError, ProblemError), self.client() as client:
            return client.ring().brokers
        return None

    def living(self) -> list[int]:
        """The ordinals of brokers that run, also of those that another process has started."""
        return [number for number, broker in enumerate(self.brokers) if self._is_up(broker)]

    def _is_up(self, broker: LocalBroker) -> bool:
        return broker.is_running() or is_in_use(broker.data_dir)

    def _prepare(self) -> None:
        """TailraceError: the data belongs to a different ring, is a broker's own, or is lost."""
        if (self.top / "data" / "meta.json").exists():
            raise TailraceError(
                f"{self.top} is a broker's own directory: choose another with --data, which will "
                "have one for each broker"
            )
        begun_count = begun_with(self.top)
        self._is_new = begun_count is None
        self._joining = _joining_count(self.top)
        if begun_count is not None and begun_count != self._broker_count:
            were = "1 broker" if begun_count == 1 else f"{begun_count} brokers"
            verb = "grow" if begun_count < self._broker_count else "drain"
            raise TailraceError(
                f"{self.top} holds a ring of {were}: start it with --brokers {begun_count}, then: "
                f"tailrace ring {verb} --brokers {self._broker_count}; or choose another directory "
                "with --data"
            )
        _check_data_is_there(self.top)
        ordinals = range(max(self._broker_count, self._joining))
        is_ring = len(ordinals) > 1
        for ordinal in ordinals:  # before anything is written: a start that fails leaves nothing
            if is_in_use(self.top / str(ordinal)):
                raise TailraceError(
                    f"broker {ordinal} of {self.top} runs already: end it first, or choose another "
                    "directory with --data"
                )
        for ordinal in ordinals:
            check_ports_are_free(self.port + PORT_STRIDE * ordinal, has_peers=is_ring)
        for each in [self.top, *(self.top / str(ordinal) for ordinal in ordinals)]:
            make_directory(each)
        if is_ring:
            self.secret = _kept_secret(self.top / SECRET_FILE)
        self._write_top()
        self.brokers = [self._member(ordinal) for ordinal in ordinals]

    def _member(self, ordinal: int) -> LocalBroker:
        is_ring = self.secret is not None
        own = {} if self.secret is None else member_settings(ordinal, self.secret)
        return LocalBroker(
            self.top / str(ordinal),
            port=self.port + PORT_STRIDE * ordinal,
            settings={**self._settings, **own},
            log_path=self.top / f"{ordinal}.log" if is_ring else None,
        )

    def _write_top(self) -> None:
        joining = {"joining": self._joining} if self._joining > self._broker_count else {}
        alone = {"alone": True} if self.secret is None else {}
        self._write_count(self.top, port=self.port, **joining, **alone)

    def _write_count(self, directory: Path, **more: int) -> None:
        _replace(directory / RING_FILE, {"brokers": self._broker_count, **more})

    def _note_committed(self) -> None:
        """Beside each broker's data. TailraceError: another number is committed."""
        with self.client() as client:
            committed = client.ring().brokers
        if committed is not None and committed <= self._joining:
            self._adopt(committed)  # it has grown or shrunk just before it was ended
        if committed not in (None, self._broker_count):
            raise _wrong_count(self.top, said=self._broker_count, committed=committed)
        if committed is not None:
            for broker in self.brokers[:committed]:
                self._write_count(broker.data_dir)

    def _wait_in_sync(self) -> None:
        """Until events are taken everywhere, but not for a replica that is far behind."""
        give_up_at_s = time.monotonic() + SLOW_S
        for ordinal in range(self._broker_count):
            with self.client(ordinal) as client:
                while not _takes_events(client.ring(), ordinal):
                    if time.monotonic() >= give_up_at_s:
                        return
                    self._pause(ordinal, "to have replicas in sync")

    def _found_if_new(self) -> None:
        """A broker that has been in a ring reads that from its disk; an empty one of a ring that is
        there is admitted automatically.
        """
        with self.client() as client:
            while (ring := self._ring_of(client)).state == "starting":
                self._pause(0, "to read its data")
            while ring.state == FOUNDABLE:
                try:
                    ring = client.found(self._broker_count)
                except ProblemError as error:
                    if error.type == "ring-exists":
                        return
                    if not error.retriable:
                        raise
                    self._pause(0, "to found the ring" if self._is_new else "to be admitted")
                    ring = self._ring_of(client)

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
        """BrokerEndedError; not of brokers that have left the ring: they go aside."""
        if len(self.brokers) > 1 and len(self.living()) < len(self.brokers):
            self.take_away_left()
        for broker in self.brokers:
            if not broker.is_running():
                broker.wait()

    def _watch(self, ordinal: int, broker: LocalBroker) -> None:
        try:
            broker.wait()
        except BrokerEndedError as error:
            if broker is not self._replaced:
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
    """What is said once when a broker takes long; before it listens it cannot say its state."""
    log = "" if broker.log_path is None else f", its log: {broker.log_path}"
    state = "it has not opened its ports yet"
    if is_listening(broker.port):
        state = f"its state: tailrace ring status --url {broker.url}"
    return f"still waiting for broker {ordinal} {what}{log}; {state}"


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
    if begun[-1] >= max(said, _joining_count(top)):
        raise TailraceError(
            f"{top / RING_FILE} says {said} brokers, but {top / str(begun[-1])} holds the data of "
            'one more: write {"brokers": N} into the file, as many as the ring was founded with'
        )
    return said


def ask_for(top: Path, brokers: int) -> bool:
    """Have the `tailrace dev` of this directory run so many brokers; False: none takes it."""
    wanted = top / WANTED_FILE
    _replace(wanted, {"brokers": brokers})
    give_up_at_s = time.monotonic() + ASKED_S
    while time.monotonic() < give_up_at_s:
        if not wanted.exists():
            return True
        time.sleep(POLL_INTERVAL_S)
    wanted.unlink(missing_ok=True)
    return False


def _replace(file: Path, document: Mapping[str, int]) -> None:
    """Replace the file in one moment, since another command may read it."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(document) + "\n")
    new.rename(file)


def _take_wanted(top: Path) -> int | None:
    try:
        return _count_in(top / WANTED_FILE)
    except (FileNotFoundError, TailraceError):
        return None
    finally:
        (top / WANTED_FILE).unlink(missing_ok=True)


def _joining_count(top: Path) -> int:
    """How many were started, those that the ring has not taken yet among them; 0: no others."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        joining = json.loads((top / RING_FILE).read_text())["joining"]
        if type(joining) is int and 1 <= joining <= BROKERS_MAX:
            return joining
    return 0


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


def _check_data_is_there(top: Path) -> None:
    """TailraceError: no broker of the ring has its data any more, so that it would begin again.

    Where one has it, the others heal from that. A start that failed leaves empty directories, and
    data that was moved to `data.lost`, as a broker proposes it, is given up.
    """
    try:
        directories = [top / str(ordinal) for ordinal in range(_count_in(top / RING_FILE))]
    except (FileNotFoundError, TailraceError):
        return
    has_begun = any(not each.exists() or _has_data(each) for each in directories)
    has_data = any((each / name).is_dir() for each in directories for name in ("data", "data.lost"))
    if has_begun and not has_data:
        raise _lost_data(top, [each / "data" for each in directories])


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


def _lost_data(top: Path, missing: Sequence[Path]) -> TailraceError:
    is_one = len(missing) == 1
    return TailraceError(
        f"{', '.join(map(str, missing))} {'is' if is_one else 'are'} missing, but "
        f"{top / RING_FILE} says that the ring had its data there: restore "
        f"{'it from a copy' if is_one else 'them from copies'}; or give the events up: mkdir -p "
        f"{missing[0]}; the ring then begins again, empty"
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


def _takes_events(ring: RingDetails, ordinal: int) -> bool:
    """Whether topics with the default of `minInSyncReplicas` can be written to at the broker.

    Ranges that others lead are known better to those, and ranges that wait do so for a command.
    """
    needed = min(MIN_IN_SYNC_REPLICAS, ring.copies)
    alive = {each.ordinal for each in ring.registrations if each.alive}
    led = [each for each in ring.ranges if each.state not in {"sealed", "waiting"}]
    return all(
        each.leader is not None
        and (
            each.leader != ordinal
            or sum(not one.ghost and one.ordinal in alive for one in each.isr) >= needed
        )
        for each in led
    )


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
