"""What goes wrong with disks."""

from dataclasses import dataclass
from functools import partial

from tests.simulation.ring.disk import Disk
from tests.simulation.ring.faults import Happening
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.world import LEADER, World


@dataclass(frozen=True, slots=True)
class Stall(Happening):
    """Every write of the disk, or of its logs alone, takes so much longer for a while."""

    delay_ms: int
    lasts_ms: int
    is_of_data: bool = False

    def happen(self, world: World) -> None:
        world.faults["data disk stalled" if self.is_of_data else "disk stalled"] += 1
        disk = world.disks[world.leader() if self.ordinal == LEADER else self.ordinal]
        name = "data_slowness_us" if self.is_of_data else "slowness_us"
        setattr(disk, name, self.delay_ms * US_PER_MS)

        def end() -> None:
            setattr(disk, name, 0)

        world.schedule.after(self.lasts_ms * US_PER_MS, end)


@dataclass(frozen=True, slots=True)
class Wipe(Happening):
    """The disk is gone; the broker comes back with an empty one."""

    down_ms: int

    def happen(self, world: World) -> None:
        if world.may_lose_disk(self.ordinal):
            self.replace_disk(world)

    def replace_disk(self, world: World) -> None:
        """Whether the ring can bear it or not."""
        world.faults["disk wiped"] += 1
        _change_disk(world, self.ordinal, world.empty_disk())
        world.schedule.after(self.down_ms * US_PER_MS, partial(world.start, self.ordinal))


@dataclass(frozen=True, slots=True)
class Copy(Happening):
    """Somebody makes a copy of the disk."""

    def happen(self, world: World) -> None:
        world.copies[self.ordinal] = world.disks[self.ordinal].copy()


@dataclass(frozen=True, slots=True)
class Restore(Happening):
    """The disk is replaced by the copy that was made of it once, if one was."""

    down_ms: int

    def happen(self, world: World) -> None:
        copy = world.copies.pop(self.ordinal, None)
        if copy is None or not world.may_lose_disk(self.ordinal):
            return
        world.faults["disk restored"] += 1
        _change_disk(world, self.ordinal, copy)
        world.schedule.after(self.down_ms * US_PER_MS, partial(world.start, self.ordinal))


@dataclass(frozen=True, slots=True)
class Twin(Happening):
    """A second process of the broker starts on an empty disk; the first one runs on for a while."""

    is_cut: bool
    lasts_ms: int

    def happen(self, world: World) -> None:
        older = world.newest(self.ordinal)
        if older is None or not world.may_lose_disk(self.ordinal):
            return
        world.faults["two processes of one ordinal"] += 1
        if self.is_cut:
            world.network.deafen(older)
        world.disks[self.ordinal] = world.empty_disk()
        world.start(self.ordinal)
        world.schedule.after(self.lasts_ms * US_PER_MS, partial(older.die, "process", "gone"))


@dataclass(frozen=True, slots=True)
class Rot(Happening):
    """A bit of the disk is another one when the process comes back."""

    down_ms: int

    def happen(self, world: World) -> None:
        if not world.may_lose_disk(self.ordinal):
            return
        process = world.newest(self.ordinal)
        if process is not None:
            world.kill(process, "process", down_ms=self.down_ms)
        if world.disks[self.ordinal].rot():
            world.faults["bit rot"] += 1


def _change_disk(world: World, ordinal: int, new: Disk) -> None:
    disk = world.disks[ordinal]
    world.disks[ordinal] = new
    for process in list(world.processes):
        if process.disk is disk:
            world.kill(process, "process", down_ms=0)
