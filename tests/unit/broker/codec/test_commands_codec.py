from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.commands import decode_command, encode_command
from tailrace_broker.model.commands import (
    AbortStep,
    AcceptLoss,
    AlterTopic,
    BeginStep,
    ChangeIsr,
    Command,
    Completed,
    CreateTopic,
    DeleteTopic,
    DropCopy,
    Fence,
    Lead,
    Lost,
    PurgeTopics,
    Register,
    RestoreTopic,
    Retire,
    Sealed,
    Stamped,
)
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.ring_state import Replica, Start
from tailrace_broker.model.topic import NEW_TOPIC

ONE, TWO = UUID(int=1), UUID(int=2)
COMMANDS: list[Command] = [
    Register(2, ONE, 7, (Start(ONE, "clean"), Start(TWO, "power")), 6),
    Fence(1, 5, is_fenced=False),
    Retire(3, 9, accept_loss=True),
    Lead(4, 9, 1, 5, without=(0, 2)),
    ChangeIsr(4, 9, 3, (Replica(0, 1, losses=3), Replica(1, 2, is_ghost=True))),
    AcceptLoss(4, 9, 1, 5),
    Lost(4, 1, 5, losses=2),
    CreateTopic("orders", ONE, NEW_TOPIC),
    AlterTopic("orders", {"retentionMs": None, "flushMs": 5, "durability": "written"}, ONE),
    DeleteTopic("orders", 2**50, ONE),
    RestoreTopic(ONE, "again"),
    PurgeTopics({ONE: 5, TWO: 2**50}),
    BeginStep("shrink", 4),
    Sealed(1, 2, 3, {ONE: (4, 5), TWO: ()}, (Replica(0, 1),)),
    AbortStep(5),
    Completed(4, 1, 5, losses=2),
    DropCopy(4, 3),
]
STORED = [encode_command(Stamped(2**63 - 1, command)) for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS, ids=[type(each).__name__ for each in COMMANDS])
def test_a_command_comes_back_from_the_log(command: Command) -> None:
    stamped = Stamped(2**63 - 1, command)

    assert decode_command(encode_command(stamped)) == stamped


def test_the_bytes_of_a_command_are_those_that_disks_have() -> None:
    stored = encode_command(Stamped(300, RestoreTopic(ONE, "again")))

    assert stored.hex(" ") == (
        "03 92 cd 01 2c 93 ad 72 65 73 74 6f 72 65 2d 74 6f 70 69 63 c4 10 "
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 a5 61 67 61 69 6e"
    )


def test_a_field_that_is_added_later_is_passed_over() -> None:
    stored = encode_command(Stamped(1, AbortStep(5)))
    longer = stored.replace(
        b"\x94\xaaabort-step\x05\xc0\xa0", b"\x95\xaaabort-step\x05\xc0\xa0\xc3"
    )
    shorter = stored.replace(b"\x94\xaaabort-step\x05\xc0\xa0", b"\x92\xaaabort-step\x05")
    assert len(longer) > len(stored) > len(shorter)

    assert decode_command(longer) == decode_command(shorter) == Stamped(1, AbortStep(5))


def test_every_truncation_is_refused() -> None:
    for stored in STORED:
        for size_bytes in range(len(stored)):
            with pytest.raises(CorruptMetadataError):
                decode_command(stored[:size_bytes])


@given(st.sampled_from(STORED), st.data())
def test_a_flipped_bit_makes_another_command_or_none(stored: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    damaged = bytearray(stored)
    damaged[bit // 8] ^= 1 << bit % 8

    with suppress(CorruptMetadataError):
        assert decode_command(bytes(damaged)).id >= -(2**63)


@given(st.binary(max_size=100))
def test_what_is_no_command_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="a command of the ring"):
        decode_command(b"\x03" + stored)


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        (b"\x02" + STORED[0][1:], "version 02; this broker reads 03"),
        (STORED[7].replace(b"\xcd\x03\xe8", b"\xcd\x00\x00"), "flushMs"),
        (STORED[0].replace(b"power", b"p\xffwer"), "cannot be read"),
    ],
    ids=["another version", "settings that cannot be", "not UTF-8"],
)
def test_a_command_that_cannot_be_is_refused(stored: bytes, what: str) -> None:
    with pytest.raises(CorruptMetadataError, match=what):
        decode_command(stored)
