"""What must always be true of replicas: the invariants 1 to 6 and 15, as named checks."""

from collections import Counter
from typing import TYPE_CHECKING

from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Replica, RingState
from tests.simulation.replication.model_log import Entry, ModelLog
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.replication.host import Host, Led
    from tests.simulation.replication.walk import Walk


class Truth:
    """What was acknowledged and what was read, and by whom ranges were led."""

    def __init__(self, walk: "Walk") -> None:
        self.acknowledged_count: Counter[LogKey] = Counter()
        self._walk = walk
        self._acknowledged: dict[tuple[LogKey, int], tuple[int, int]] = {}  # value, leader's epoch
        self._read: dict[LogKey, dict[int, int | None]] = {}  # values by offset
        self._read_end: dict[tuple[str, LogKey], int] = {}
        self._leaders: dict[tuple[int, int], str] = {}
        self._open: list[tuple[Host, Led]] = []

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
            self._forget(host, led)  # the leader of a lossy epoch may die before it opens
        for (key, offset), (value, in_epoch) in self._acknowledged.items():
            hosted = host.hosted.get(key)
            if hosted is None or hosted.range_id != led.range_id:
                continue
            if in_epoch <= led.machine.epoch:  # else this one leads late, and knows no newer one
                self._check_has(host, key, offset, value, "1: a new leader")

    def _forget(self, host: "Host", led: "Led") -> None:
        """What `written` topics lose with the power of all; `fsync` topics lose nothing."""
        for key, hosted in host.hosted.items():
            if hosted.range_id != led.range_id or host.is_synced(key):
                continue
            self._walk.counts["lossy epoch of a written topic"] += 1
            end = hosted.log.end
            for known in [each for each in self._acknowledged if each[0] == key]:
                if known[1] >= end:
                    self._walk.counts["written record lost"] += 1
                    self._check_gone(host, led, known, self._acknowledged.pop(known)[0])
            read = self._read.get(key, {})
            for offset in [each for each in read if each >= end]:
                del read[offset]
            for name, other in self._read_end:
                if other == key:
                    self._read_end[name, key] = min(self._read_end[name, key], end)

    def acknowledged(self, host: "Host", led: "Led", key: LogKey, offset: int) -> None:
        """Invariant 6: every leader of a newer epoch has the record."""
        entry = _entry(host.hosted[key].log, offset)
        assert entry is not None, (key, offset)
        self._acknowledged[key, offset] = entry.value, led.machine.epoch
        self.acknowledged_count[key] += 1
        for other, newer in self._open:
            if newer.range_id == led.range_id and newer.machine.epoch > led.machine.epoch:
                self._check_has(other, key, offset, entry.value, "6: a newer leader")

    def _check_gone(self, host: "Host", led: "Led", where: tuple[LogKey, int], value: int) -> None:
        """No other ghost has what is lost; with several logs one may, of which it has less else."""
        key, offset = where
        if sum(each.range_id == led.range_id for each in host.hosted.values()) > 1:
            return
        for member in host.view(led.range_id).range.isr:
            log = self._walk.disks[member.ordinal].logs.get(key)
            entry = None if log is None or member.cause != "power" else _entry(log, offset)
            check(
                entry is None or entry.value != value,
                f"1: {member} has {value} at {offset} of {key}, which {host.name} leads without",
            )

    def changed(self, before: RingState, after: RingState) -> None:
        """Invariant 3 for who joins an ISR; and no removal leaves less than the floor."""
        for range_id, now in after.ranges.items():
            was = before.ranges[range_id]
            if was is now:
                continue
            whole = [each for each in now.isr if not each.is_ghost]
            gone = {each.ordinal for each in was.isr} - {each.ordinal for each in now.isr}
            check(
                not gone or len(whole) >= after.floor,
                f"range {range_id}: {gone} left the ISR, of which only {whole} are no ghosts",
            )
            joined = [each for each in whole if each not in was.isr]
            if now.leader is None or now.epoch != was.epoch:
                continue
            process = self._walk.processes.get(now.leader.ordinal)
            led = None if process is None else process.host.led.get(range_id)
            if process is None or led is None or led.machine.epoch != now.epoch:
                continue
            for key, hosted in process.host.hosted.items():
                if hosted.range_id == range_id:
                    for each in joined:
                        self._check_member(process.host, key, each, hosted.ends.high_watermark)

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

    # --- states of replicas ---

    def check_some(self, host: "Host") -> None:
        """What a message can have changed."""
        for key, hosted in host.hosted.items():
            if hosted.ends.under_way == 0:
                _check_ends(host, key, hosted.ends, hosted.log)

    def check_all(self, host: "Host") -> None:
        """Invariant 4: logs with one last epoch are prefixes of each other; epochs do not fall."""
        self.check_some(host)
        for key, hosted in host.hosted.items():
            epochs = [each.epoch for each in hosted.log.entries]
            check(epochs == sorted(epochs), f"4: epochs fall in {key} of {host.name}")
            for process in self._walk.processes.values():
                other = process.host.hosted.get(key)
                if other is not None and process.host is not host:
                    self._check_prefix(host, key, hosted.log, other.log)

    def lacking(self, acknowledged: dict[LogKey, int]) -> str | None:
        """Invariant 15: what is not whole yet."""
        walk = self._walk
        state = walk.metadata.state
        for owner in state.ranges.values():
            wanted = {owner.replica_of(state.brokers[each]) for each in owner.replicas}
            if {*owner.isr} != wanted:
                return f"ISR of range {owner.id}: {owner.isr}"
            if owner.leader is None:
                return f"range {owner.id} has no leader"
            process = walk.processes.get(owner.leader.ordinal)
            if process is None:
                return f"broker {owner.leader.ordinal} is down"
            led = process.host.led.get(owner.id)
            if led is None:
                return f"{process.host.name} does not know that it leads range {owner.id}"
            for key in process.host.hosted:
                if process.host.hosted[key].range_id != owner.id:
                    continue
                start = process.host.hosted[key].ends.start
                for other in walk.processes.values():
                    if key in other.host.hosted and other.host.hosted[key].ends.start != start:
                        return f"{key} starts at {start}, but not at {other.host.name}"
                if key in process.host.live and (
                    self.acknowledged_count[key] <= acknowledged.get(key, 0)
                ):
                    return f"{key} takes no produce"
        return None

    def check_end(self) -> None:
        """Everything that was acknowledged is at the leader, and in every replica in time."""
        for process in self._walk.processes.values():
            self.check_all(process.host)
            for led in process.host.led.values():
                for (key, offset), (value, _) in self._acknowledged.items():
                    hosted = process.host.hosted.get(key)
                    if hosted is not None and hosted.range_id == led.range_id:
                        self._check_has(process.host, key, offset, value, "1: the last leader")

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
        walk = self._walk
        range_id = host.hosted[key].range_id
        led = host.led.get(range_id)
        owner = walk.metadata.state.ranges[range_id]
        if led is None or owner.epoch != led.machine.epoch:
            return
        for member in (*owner.isr, *led.machine.proposed):
            self._check_member(host, key, member, high_watermark)

    def _check_member(
        self, host: "Host", key: LogKey, member: Replica, high_watermark: int
    ) -> None:
        walk = self._walk
        registered = walk.metadata.state.brokers[member.ordinal]
        disk = walk.disks[member.ordinal]
        now = walk.metadata.state.ranges[host.hosted[key].range_id].replica_of(registered)
        if member.is_ghost or now != member:
            return
        process = walk.processes.get(member.ordinal)
        is_there = process is not None and process.start == registered.start
        if registered.incarnation != disk.incarnation or (not is_there and not host.is_synced(key)):
            return  # it may become a ghost when it has registered
        if host.hosted[key].range_id in disk.damaged:
            return  # it becomes a ghost when it has said so
        log = disk.logs.get(key)
        end = 0 if log is None else log.durable if host.is_synced(key) else log.end
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
