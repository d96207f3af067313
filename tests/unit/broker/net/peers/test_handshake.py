"""Two brokers find out whether they belong to one ring, without a socket."""

import hmac
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.model.errors import HandshakeError
from tailrace_broker.net.peers.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    Handshake,
    PeerIdentity,
    Side,
)

SECRET = b"of the ring"
CLUSTER = UUID(int=7)
OTHER = UUID(int=8)


def dialler(
    ordinal: int = 1,
    cluster: UUID | None = CLUSTER,
    secret: bytes = SECRET,
    wanted: int = 2,
    nonce: bytes = b"d" * NONCE_BYTES,
) -> Handshake:
    me = PeerIdentity(ordinal, cluster)
    return Handshake(Side.DIALLER, me, secret=secret, nonce=nonce, wanted=wanted)


def acceptor(
    ordinal: int = 2,
    cluster: UUID | None = CLUSTER,
    secret: bytes = SECRET,
    nonce: bytes = b"a" * NONCE_BYTES,
) -> Handshake:
    return Handshake(Side.ACCEPTOR, PeerIdentity(ordinal, cluster), secret=secret, nonce=nonce)


def proof_of(side: bytes, greetings: bytes) -> bytes:
    """As docs/protocol.md has it."""
    return hmac.digest(SECRET, b"tailrace peer 1 " + side + greetings, "sha256")


def shake(one: Handshake, two: Handshake) -> None:
    """The dialler is one; every message arrives whole."""
    assert two.first_words() == b""
    assert two.feed(one.feed(two.feed(one.first_words()))) == b""


@pytest.mark.parametrize("secret", [SECRET, b""])
@pytest.mark.parametrize("clusters", [(CLUSTER, CLUSTER), (None, CLUSTER), (CLUSTER, None)])
def test_brokers_of_one_ring_know_each_other(
    secret: bytes, clusters: tuple[UUID | None, UUID | None]
) -> None:
    one = dialler(cluster=clusters[0], secret=secret)
    two = acceptor(cluster=clusters[1], secret=secret)
    shake(one, two)

    assert one.peer == (2, clusters[1])
    assert two.peer == (1, clusters[0])


def test_the_bytes_of_it() -> None:
    """Byte for byte: other versions read them."""
    one, two = dialler(), acceptor()
    hello = one.first_words()
    answer = two.feed(hello)

    assert hello == b"TRLH\x01\x00\x01\x00" + CLUSTER.bytes + b"d" * 32
    assert answer[: GREETING.size] == b"TRLH\x01\x00\x02\x00" + CLUSTER.bytes + b"a" * 32
    greetings = hello + answer[: GREETING.size]
    assert answer[GREETING.size :] == proof_of(b"acceptor", greetings)
    assert one.feed(answer) == proof_of(b"dialler", greetings)


@given(st.binary(max_size=20), st.integers(1, 40))
def test_it_may_come_in_any_pieces_and_frames_may_follow(behind: bytes, piece_bytes: int) -> None:
    one, two = dialler(), acceptor()

    def fed(side: Handshake, stream: bytes) -> bytes:
        answer = b""
        for start in range(0, len(stream), piece_bytes):
            piece = stream[start : start + piece_bytes]
            if side.peer is None:
                answer += side.feed(piece)
            else:
                later.append(piece)
        return answer

    later: list[bytes] = []
    proof = fed(one, fed(two, one.first_words()))
    fed(two, proof + behind)

    assert one.peer is not None
    assert one.rest() == b""
    assert two.rest() + b"".join(later) == behind


def refusal_of(one: Handshake, two: Handshake) -> HandshakeError:
    with pytest.raises(HandshakeError) as caught:
        shake(one, two)
    assert two.peer is None
    return caught.value


@pytest.mark.parametrize("theirs", [b"of another ring", b""])
def test_another_secret_is_refused_by_who_dials(theirs: bytes) -> None:
    error = refusal_of(one := dialler(), acceptor(secret=theirs))

    assert error.reason == "secret"
    assert "TAILRACE_RING_SECRET" in error.detail
    assert one.peer is None


@pytest.mark.parametrize(
    "proof", [bytes(PROOF_BYTES), b"\xff" * PROOF_BYTES], ids=["zeros", "ones"]
)
def test_a_guess_is_refused_by_who_accepts(proof: bytes) -> None:
    two = acceptor()
    two.feed(dialler().first_words())
    with pytest.raises(HandshakeError, match="does not know this ring's secret"):
        two.feed(proof)
    assert two.peer is None


def test_a_proof_sent_back_proves_nothing() -> None:
    """Whoever does not know the secret has only what it was sent."""
    two = acceptor()
    answer = two.feed(dialler().first_words())
    with pytest.raises(HandshakeError, match="secret"):
        two.feed(answer[GREETING.size :])


def test_a_proof_of_another_connection_proves_nothing() -> None:
    one, seen = dialler(), acceptor()
    recorded = one.feed(seen.feed(one.first_words()))
    two = acceptor(nonce=b"b" * NONCE_BYTES)
    two.feed(one.first_words())
    with pytest.raises(HandshakeError, match="secret"):
        two.feed(recorded)


def test_greetings_sent_back_prove_nothing() -> None:
    """A dialler is not taken in by its own words, nor by an acceptor's from elsewhere."""
    one = dialler()
    with pytest.raises(HandshakeError, match="secret"):
        one.feed(one.first_words() + acceptor().feed(one.first_words())[GREETING.size :])


def test_nobody_in_between_changes_a_greeting() -> None:
    for changed in range(GREETING.size):
        one, two = dialler(), acceptor()
        hello = bytearray(one.first_words())
        hello[changed] ^= 1
        with pytest.raises(HandshakeError):
            one.feed(two.feed(bytes(hello)))


def test_a_broker_of_another_ring_is_refused_and_both_are_named() -> None:
    error = refusal_of(dialler(), acceptor(cluster=OTHER))

    assert error.reason == "cluster"
    assert f"the ring {OTHER}, this broker to the ring {CLUSTER}" in error.detail


def test_who_accepts_refuses_another_ring_too() -> None:
    """Whatever the dialler thinks of it."""
    two = acceptor(cluster=OTHER)
    hello = dialler().first_words()
    answer = two.feed(hello)
    with pytest.raises(HandshakeError, match=f"the ring {CLUSTER}, this broker to the ring"):
        two.feed(proof_of(b"dialler", hello + answer[: GREETING.size]))
    assert two.peer is None


def test_another_broker_at_the_address_is_refused() -> None:
    error = refusal_of(dialler(wanted=3), acceptor())

    assert error.reason == "ordinal"
    assert "broker 2, at the address of broker 3" in error.detail


def test_a_second_broker_of_the_same_ordinal_is_refused() -> None:
    error = refusal_of(dialler(ordinal=2), acceptor())

    assert error.reason == "ordinal"
    assert "as this one is" in error.detail


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"GET / HTTP/1.1\r\n".ljust(GREETING.size), "magic"),
        (b"TRLH\x02\x00".ljust(GREETING.size, b"\0"), "version"),
    ],
    ids=["http", "later"],
)
def test_who_speaks_otherwise_is_refused(greeting: bytes, reason: str) -> None:
    for side in (dialler(), acceptor()):
        with pytest.raises(HandshakeError) as caught:
            side.feed(greeting)
        assert caught.value.reason == reason
        assert not side.is_greeted
