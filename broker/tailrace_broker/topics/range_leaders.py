"""This broker's role in each range, and the errors that name whom to ask instead."""

from collections.abc import Awaitable, Callable
from functools import partial

from tailrace_broker.core.ring.roles import Leading, Role, is_replicated, roles
from tailrace_broker.model.errors import NoLeaderError, NotLeaderError, TailraceError
from tailrace_broker.model.ring_state import Registration, RingState
from tailrace_broker.storage.log.range_role import Elsewhere, InSync, RangeRole


class RangeRoles:
    """The roles as of the last state that was applied."""

    def __init__(
        self,
        url_of: Callable[[int], str],
        on_given_up: Callable[[int, int], None],
        prove: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`url_of` returns the public URL of a broker.

        `on_given_up` gets a range and an epoch of it that this process can lead in no more.
        `prove` says whether this process still leads a replicated range.
        """
        self._prove = prove
        self._url_of = url_of
        self._on_given_up = on_given_up
        self._roles: dict[int, Role] = {}
        self._is_registered = False
        self._shared: dict[int, RangeRole] = {}
        self.on_changed: Callable[[], None] = lambda: None  # some role has, or may have
        self.count_in_sync: Callable[[int], InSync | None] = lambda _: None  # of a range

    def apply(self, state: RingState, mine: Registration | None) -> None:
        """Change the roles that differ in this state, at once. O(ranges), and the logs of those."""
        before, self._roles = self._roles, roles(state, mine)
        is_registered = mine is not None
        if is_registered != self._is_registered:  # which nothing is served without
            self._is_registered, before = is_registered, {}
        altered = []
        for range_id, role in self._roles.items():
            owner, known = state.ranges[range_id], self._shared.get(range_id)
            if known is not None:
                known.copies = len(owner.isr)
                known.take_step(is_open=owner.step is not None)
            if before.get(range_id) == role:
                continue
            epoch = role.epoch if isinstance(role, Leading) else None
            elsewhere = self._elsewhere(range_id, role, mine)
            commits_alone = not is_replicated(owner)
            if owner.is_sealed and elsewhere is not None and mine is not None:
                commits_alone = False  # what this copy has of it, if any, may be too much
            if not commits_alone and (known is None or known.epoch != epoch):
                epoch = None  # `lead` follows when its logs are ready
            if known is None:
                self._shared[range_id] = known = RangeRole(
                    epoch,
                    elsewhere,
                    commits_alone=commits_alone,
                    on_given_up=partial(self._on_given_up, range_id),
                    prove=partial(self._prove, range_id),
                    count_in_sync=partial(self._count_in_sync, range_id),
                )
                known.copies = len(owner.isr)
                known.take_step(is_open=owner.step is not None)
            else:
                altered.append((known, epoch, elsewhere, commits_alone))
        for range_id in before.keys() - self._roles.keys():  # gone, sealed while this one was away
            known = self._shared[range_id]
            nobody = partial(_led_by_nobody, range_id)
            altered.append((known, None, nobody, known.commits_alone))
        # When all are known: what is refused here may go on in a range that is new.
        for known, epoch, elsewhere, commits_alone in altered:
            known.change(epoch, elsewhere, commits_alone=commits_alone)
        self.on_changed()

    def lead(self, range_id: int, epoch: int | None) -> None:
        """Take appends of a replicated range in this epoch from now on; None: take none."""
        role = self._shared[range_id]
        role.change(epoch, role.elsewhere, commits_alone=role.commits_alone)
        self.on_changed()

    def of(self, range_id: int) -> RangeRole:
        """The role in a range of the state that was applied last."""
        return self._shared[range_id]

    def _count_in_sync(self, range_id: int) -> InSync | None:
        return self.count_in_sync(range_id)

    def _elsewhere(self, range_id: int, role: Role, mine: Registration | None) -> Elsewhere | None:
        if isinstance(role, Leading) or (mine is not None and role.leader == mine.ordinal):
            return None
        if role.leader is None:
            return partial(_led_by_nobody, range_id)
        return partial(_led_by, role.leader, self._url_of)


def _led_by_nobody(range_id: int, topic: str, partition: int) -> TailraceError:
    return NoLeaderError(
        f'no broker leads partition {partition} of topic "{topic}" now; try again, and if it '
        f"stays so look at range {range_id} of GET /v1/ring",
        topic=topic,
        partition=partition,
        range=range_id,
    )


def _led_by(leader: int, url_of: Callable[[int], str], topic: str, partition: int) -> TailraceError:
    url = url_of(leader)
    return NotLeaderError(
        f'broker {leader} leads partition {partition} of topic "{topic}"; ask it at {url}',
        topic=topic,
        partition=partition,
        leader=leader,
        leaderUrl=url,
    )
