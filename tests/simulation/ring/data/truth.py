"""What must always be true of replicas: the invariants 1 to 6 and 15, and of a hand-over."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from tailrace_broker.core.node.duties import takeovers
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.ranges import logs_of
from tailrace_broker.core.ring.topics import open_ranges
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, Replica, RingState
from tests.simulation.ring.data.model_log import Entry, ModelLog
from tests.simulation.ring.groups.records import GROUPS_ID
from tests.simulation.ring.steps.lineage import Lineage
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.ring.data.host import Host, Led, Logs


class Replicated(Protocol):
    """The ring from outside."""

    counts: Counter[str]

    @property
    def state(self) -> RingState:
        """The newest that is committed."""

    def hosts(self) -> "Iterable[Host]":
        """Of all living processes."""

    def registered(self, ordinal: int) -> "Host | None":
        """Of the living process that is the broker, as it is committed."""

    def logs_of(self, ordinal: int) -> "Logs | None":
        """On the disk that is the broker's, as it is committed; None: it is gone, or damaged."""


class Truth:
    """What was acknowledged and what was read, and by whom ranges were led."""

    def __init__(self, ring: Replicated) -> None:
        self.acknowledged_count: Counter[LogKey] = Counter()
        self.on_lost: Callable[[LogKey, int], None] = lambda key, end: None
        self.lineage = Lineage(ring)
        self._ring = ring
        self._acknowledged: dict[tuple[LogKey, int], tuple[int, int]] = {}  # value, leader's epoch
        self._flushed: dict[LogKey, int] = {}  # what was acknowledged below was flushed before
        self._read: dict[LogKey, dict[int, int | None]] = {}  # values by offset
        self._read_end: dict[tuple[str, LogKey], int] = {}
        self._leaders: dict[tuple[int, int], str] = {}
        self._held: set[tuple[int, int]] = set()  # ranges and epochs
        self._open: list[tuple[Host, Led]] = []
        # By range and epoch whose leader was asked for its ends, what was acknowledged then.
        self._asked: dict[tuple[int, int], dict[tuple[LogKey, int], tuple[int, int]]] = {}

    def hosts(self) -> "Iterable[Host]":
        """Of all living processes."""
        return self._ring.hosts()

    def holds(self, key: LogKey, offset: int, value: int) -> bool:
        """Whether that was acknowledged, and is not lost."""
        known = self._acknowledged.get((key, offset))
        return known is not None and known[0] == value

    def committed(self, key: LogKey) -> Mapping[int, int | None]:
        """What anybody took for committed, by offset."""
        return self._read.get(key, {})

    # --- events ---

    def opened(self, host: "Host", led: "Led") -> None:
        """Invariants 1 and 5."""
        epoch = (led.range_id, led.machine.epoch)
        known = self._leaders.setdefault(epoch, host.name)
        check(known == host.name, f"5: range, epoch {epoch} are led by {known} and {host.name}")
        self._open = [each for each in self._open if each[0].is_alive]
        self._open.append((host, led))
        earlier = [each for owner, each in self._leaders if owner == led.range_id]
        last = max((each for each in earlier if each < led.machine.epoch), default=0)
        lossy = host.view(led.range_id).range.lossy_epochs
        if any(last < each <= led.machine.epoch for each in lossy):
            self._forget(host, led)  # the leader of a lossy epoch may die before it begins
        for (key, offset), (value, in_epoch) in self._acknowledged.items():
            hosted = host.hosted.get(key)
            if hosted is None or hosted.range_id != led.range_id:
                continue
            if in_epoch <= led.machine.epoch:  # else this one leads late, and knows no newer one
                self._check_has(host, key, offset, value, "1: a new leader")

    def held(self, led: "Led") -> None:
        """From now on nothing is appended in the epoch."""
        self._held.add((led.range_id, led.machine.epoch))

    def begins_write(self, host: "Host", led: "Led", key: LogKey) -> None:
        """A leader that holds appends begins none."""
        is_held = (led.range_id, led.machine.epoch) in self._held
        check(not is_held, f"{host.name} appends to {key} in an epoch in which it holds appends")

    def _check_handed_over(self, range_id: int, was: RangeState) -> None:
        """A leader that hands over has committed all that it has appended."""
        assert was.leader is not None
        host = self._ring.registered(was.leader.ordinal)
        led = None if host is None else host.led.get(range_id)
        if host is None or led is None or led.machine.epoch != was.epoch:
            return
        self._ring.counts["handed over"] += 1
        for key, hosted in host.hosted.items():
            if hosted.range_id == range_id:
                what = f"range {range_id} with appends to {key} that are not committed"
                check(host.is_committed(key), f"{host.name} hands over {what}")

    def _forget(self, host: "Host", led: "Led") -> None:
        """What `written` topics lose with the power of all; `fsync` topics lose nothing."""
        for key, hosted in host.hosted.items():
            if hosted.range_id != led.range_id:
                continue
            self._ring.counts["lossy epoch of a written topic"] += not host.is_synced(key)
            for known, value in self._forget_from(key, hosted.log.end):
                self._check_gone(host, led, known, value)

    def _forget_from(self, key: LogKey, end: int) -> list[tuple[tuple[LogKey, int], int]]:
        """What was acknowledged there, while the topic was `written`, and is lost."""
        end = max(end, self._flushed.get(key, 0))
        self.on_lost(key, end)
        lost = [each for each in self._acknowledged if each[0] == key and each[1] >= end]
        self._ring.counts["written record lost"] += len(lost)
        read = self._read.get(key, {})
        for offset in [each for each in read if each >= end]:
            del read[offset]
        for name, other in self._read_end:
            if other == key:
                self._read_end[name, key] = min(self._read_end[name, key], end)
        return [(known, self._acknowledged.pop(known)[0]) for known in lost]

    def acknowledged(self, host: "Host", led: "Led", key: LogKey, offset: int) -> None:
        """Invariant 6: every leader of a newer epoch has the record."""
        entry = _entry(host.hosted[key].log, offset)
        assert entry is not None, (key, offset)
        self._acknowledged[key, offset] = entry.value, led.machine.epoch
        if host.is_synced(key):
            self._flushed[key] = max(offset + 1, self._flushed.get(key, 0))
        self.acknowledged_count[key] += 1
        self.lineage.acknowledged(host.name, key, offset)
        for other, newer in self._open:
            if key not in other.hosted:
                continue  # its partition is sealed by now, and ends behind it, or is gone
            if newer.range_id == led.range_id and newer.machine.epoch > led.machine.epoch:
                self._check_has(other, key, offset, entry.value, "6: a newer leader")

    def asked(self, led: "Led") -> None:
        """Somebody asks a leader where its logs end; all that ask until it answers get that."""
        self._asked[led.range_id, led.machine.epoch] = {**self._acknowledged}

    def proven(self, host: "Host", led: "Led") -> None:
        """No end that a leader gives is below what was acknowledged before it was asked for."""
        asked = self._asked.pop((led.range_id, led.machine.epoch), {})
        self._ring.counts["lead proven"] += 1
        for (key, offset), acknowledged in asked.items():
            hosted = host.hosted.get(key)
            is_kept = self._acknowledged.get((key, offset)) == acknowledged
            if hosted is None or hosted.range_id != led.range_id or not is_kept:
                continue
            if hosted.ends.high_watermark >= led.machine._logs[key].start_end:
                check(
                    offset < hosted.ends.high_watermark,
                    f"an end: {host.name} gives {hosted.ends.high_watermark} as that of {key}; "
                    f"{offset} was acknowledged before",
                )

    def _check_gone(self, host: "Host", led: "Led", where: tuple[LogKey, int], value: int) -> None:
        """No other ghost has what is lost; with several logs one may, of which it has less else."""
        key, offset = where
        if sum(each.range_id == led.range_id for each in host.hosted.values()) > 1:
            return
        for member in host.view(led.range_id).range.isr:
            log = (self._ring.logs_of(member.ordinal) or {}).get(key)
            entry = None if log is None or member.cause != "power" else _entry(log, offset)
            check(
                entry is None or entry.value != value,
                f"1: {member} has {value} at {offset} of {key}, which {host.name} leads without",
            )

    def changed(self, before: RingState, after: RingState) -> None:
        """Invariant 3 for who joins an ISR; no removal leaves less than the floor; hand-overs.

        9 for what is sealed.
        """
        self.lineage.changed(before, after, self._acknowledged)
        deposed = [*takeovers(before, after)]
        for range_id, now in after.ranges.items():
            was = before.ranges.get(range_id)
            if was is None or was is now or now.is_sealed:
                continue
            leaders = {each.ordinal for each in (was.leader, now.leader) if each is not None}
            if len(leaders) > 1 and was.leader not in deposed:
                self._check_handed_over(range_id, was)
            whole = [each for each in now.isr if not each.is_ghost]
            gone = {each.ordinal for each in was.isr} - {each.ordinal for each in now.isr}
            check(
                not gone or len(whole) >= after.floor,
                f"range {range_id}: {gone} left the ISR, of which only {whole} are no ghosts",
            )
            joined = [each for each in whole if each not in was.isr]
            if now.leader is None or now.epoch != was.epoch:
                continue
            host = self._ring.registered(now.leader.ordinal)
            led = None if host is None else host.led.get(range_id)
            if host is None or led is None or led.machine.epoch != now.epoch:
                continue
            for key, hosted in host.hosted.items():
                if hosted.range_id == range_id:
                    for each in joined:
                        self._check_member(host, key, each, hosted.ends.high_watermark)
                        self._check_joined(host, key, each)

    def advanced(self, host: "Host", key: LogKey, high_watermark: int) -> None:
        """Invariant 2: what anybody takes for committed is the same everywhere, for ever."""
        log = host.hosted[key].log
        read = self._read.setdefault(key, {})
        first = max(self._read_end.get((host.name, key), 0), log.start)
        for offset in range(first, high_watermark):
            entry = _entry(log, offset)
            value = None if entry is None else entry.value
            known = read.setdefault(offset, value)
            if value is None or known != value:
                check(
                    False, f"2: {host.name} has {value} at {offset} of {key}; {known} is committed"
                )
        self._read_end[host.name, key] = high_watermark
        self._check_members(host, key, high_watermark)

    def read(self, host: "Host", key: LogKey) -> None:
        """Invariant 2 again: what is read now is what was read before, at any replica."""
        hosted = host.hosted[key]
        read = self._read.get(key, {})
        # A log that begins again does so here before its disk does.
        for offset in range(hosted.ends.start, hosted.ends.high_watermark):
            entry = _entry(hosted.log, offset)
            value = None if entry is None else entry.value
            if value is None or value != read.get(offset, value):
                check(False, f"2: {host.name} has {value} at {offset} of {key}: {read[offset]}")

    def recovered(self, logs: "Logs") -> None:
        """A lone copy of a `written` topic loses with the power what no other could have."""
        state = self._ring.state
        for topic in [*state.topics.values(), *(each.topic for each in state.deleted.values())]:
            for key, range_id in logs_of(topic):
                is_sealed = state.ranges[range_id].is_sealed
                if len(state.ranges[range_id].replicas) == 1 and key in logs and not is_sealed:
                    self._forget_from(key, logs[key].end)

    # --- states of replicas ---

    def check_some(self, host: "Host") -> None:
        """What a message can have changed."""
        if not host.is_alive:
            return  # it died of what it was to do
        for key, hosted in host.hosted.items():
            if hosted.ends.under_way == 0:
                _check_ends(host, key, hosted.ends, hosted.log)

    def check_all(self, host: "Host") -> None:
        """Invariant 4: logs with one last epoch are prefixes of each other; epochs do not fall."""
        if not host.is_alive:
            return
        self.check_some(host)
        for key, hosted in host.hosted.items():
            entries = hosted.log.entries
            epochs = [each.epoch for each in entries]
            check(epochs == sorted(epochs), f"4: epochs fall in {key} of {host.name}")
            is_once = len({each.value for each in entries}) == len(entries)
            check(is_once, f"10: a record is twice in {key} of {host.name}")
            for other_host in self._ring.hosts():
                other = other_host.hosted.get(key)
                if other is not None and other_host is not host:
                    self._check_prefix(host, key, hosted.log, other.log)

    def lacking(self, acknowledged: dict[LogKey, int]) -> str | None:
        """Invariant 15: what is not whole yet."""
        for owner in open_ranges(self._ring.state):
            lacking = self._lacking_isr(owner) or self._lacking_logs(owner, acknowledged)
            if lacking is not None:
                return lacking
        return self.lineage.lacking()

    def lacking_copies(self) -> str | None:
        """A range that has not all its copies in sync."""
        found = map(self._lacking_isr, open_ranges(self._ring.state))
        return next((each for each in found if each is not None), self.lineage.lacking())

    def _lacking_isr(self, owner: RangeState) -> str | None:
        brokers = self._ring.state.brokers
        wanted = {owner.replica_of(brokers[each]) for each in owner.replicas}
        return None if {*owner.isr} == wanted else f"ISR of range {owner.id}: {owner.isr}"

    def _lacking_logs(self, owner: RangeState, acknowledged: dict[LogKey, int]) -> str | None:
        if owner.leader is None:
            return f"range {owner.id} has no leader"
        host = self._ring.registered(owner.leader.ordinal)
        if host is None:
            return f"broker {owner.leader.ordinal} is down"
        if owner.id not in host.led:
            return f"{host.name} does not know that it leads range {owner.id}"
        if owner.leader.ordinal != owner.natural_leader:
            return f"{host.name} leads range {owner.id}, not its natural leader"
        for key, hosted in host.hosted.items():
            if hosted.range_id != owner.id:
                continue
            for other in self._ring.hosts():
                start = hosted.ends.start
                if key in other.hosted and other.hosted[key].ends.start != start:
                    return f"{key} starts at {start}, but not at {other.name}"
            is_produced = key in host.live and key.topic_id != GROUPS_ID
            if is_produced and self.acknowledged_count[key] <= acknowledged.get(key, 0):
                return f"{key} takes no produce"
        return None

    def check_end(self) -> None:
        """Everything that was acknowledged is at the leader, and in every replica in time."""
        self.lineage.check_end()
        for host in self._ring.hosts():
            self.check_all(host)
            for led in host.led.values():
                for (key, offset), (value, _) in self._acknowledged.items():
                    hosted = host.hosted.get(key)
                    if hosted is not None and hosted.range_id == led.range_id:
                        self._check_has(host, key, offset, value, "1: the last leader")

    # --- checks ---

    def _check_has(self, host: "Host", key: LogKey, offset: int, value: int, who: str) -> None:
        log = host.hosted[key].log
        if offset < log.start:
            return  # retention
        entry = _entry(log, offset)
        check(
            entry is not None and entry.value == value,
            f"{who}, {host.name}, has {entry} at {offset} of {key}: {value} was acknowledged",
        )

    def _check_members(self, host: "Host", key: LogKey, high_watermark: int) -> None:
        """Invariant 3: the HW is not above any member of the committed or a pending ISR."""
        ring = self._ring
        range_id = host.hosted[key].range_id
        led = host.led.get(range_id)
        owner = ring.state.ranges[range_id]
        if led is None or owner.epoch != led.machine.epoch:
            return
        for member in (*owner.isr, *led.machine.proposed):
            self._check_member(host, key, member, high_watermark)

    def _check_joined(self, host: "Host", key: LogKey, member: Replica) -> None:
        """Invariant 1: a member that is no ghost has all that was ever acknowledged."""
        log = (self._ring.logs_of(member.ordinal) or {}).get(key)
        registered = self._ring.state.brokers[member.ordinal]
        is_there = self._ring.registered(member.ordinal) is not None
        now = self._ring.state.ranges[host.hosted[key].range_id].replica_of(registered)
        if log is None or now.number != member.number or not is_there:
            return
        for (other, offset), (value, _) in self._acknowledged.items():
            if other != key or offset < log.start:
                continue
            entry = _entry(log, offset)
            is_kept = entry is not None and entry.value == value
            check(
                is_kept and (offset < log.durable or not host.is_synced(key)),
                f"1: {member} joins with {entry} at {offset} of {key}: {value} was acknowledged",
            )

    def _check_member(
        self, host: "Host", key: LogKey, member: Replica, high_watermark: int
    ) -> None:
        ring = self._ring
        registered, logs = ring.state.brokers[member.ordinal], ring.logs_of(member.ordinal)
        now = ring.state.ranges[host.hosted[key].range_id].replica_of(registered)
        if member.is_ghost or now.number != member.number:
            return
        is_there = ring.registered(member.ordinal) is not None
        if logs is None or (not is_there and not host.is_synced(key)):
            return  # it may become a ghost when it has registered
        log = logs.get(key)
        first = self.lineage.firsts.get(key, 0)  # it has not made the log yet, or again
        end = first if log is None else log.durable if host.is_synced(key) else log.end
        if end < high_watermark:
            ahead = f"the HW of {host.name} is {high_watermark}"
            check(False, f"3: {member} ends at {end} in {key}, {ahead}")

    def _check_prefix(self, host: "Host", key: LogKey, one: ModelLog, other: ModelLog) -> None:
        if one.last_epoch != other.last_epoch:
            return
        first, end = max(one.start, other.start), min(one.end, other.end)
        if first >= end:
            return
        check(
            [each.value for each in one.read(first, end)]
            == [each.value for each in other.read(first, end)],
            f"4: {key} of {host.name} and of another replica differ, in epoch {one.last_epoch}",
        )


def _entry(log: ModelLog, offset: int) -> Entry | None:
    if log.start <= offset < log.end:
        return log.entries[offset - log.start]
    return None


def _check_ends(host: "Host", key: LogKey, ends: LogEnds, log: ModelLog) -> None:
    """Violation when the machines take the log for something else. Called often."""
    if (
        (ends.start, ends.written) != (log.start, log.end)
        or ends.flushed > log.durable
        or ends.last_epoch != log.last_epoch
    ):
        found = f"{log.start} to {log.end}, durable to {log.durable}, epoch {log.last_epoch}"
        check(False, f"{host.name} takes {key} for {ends}: it is {found}")
