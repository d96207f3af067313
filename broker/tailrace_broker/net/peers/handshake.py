"""How two brokers make sure that they belong to one ring, before any message: no I/O.

Both show that they know the ring secret, without sending it:

    dialler  -> acceptor   greeting
    acceptor -> dialler    greeting, proof
    dialler  -> acceptor   proof, then frames (`codec/peer.py`)

Greeting, 56 bytes, little-endian: magic 4 B (of the `Purpose`), version u16, ordinal u16, cluster
id 16 B (zeros: none yet), nonce 32 B. Proof, 32 bytes: HMAC-SHA256, keyed by the secret, over a
label that names purpose and side, the dialler's greeting and the acceptor's. The nonces make each
proof good for one connection, the labels for one direction. Without a secret the key is empty.

Frames are neither encrypted nor authenticated beyond that: the network between brokers is trusted
not to change what passes.
"""

import hmac
import struct
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.model.errors import HandshakeError

VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32

GREETING = struct.Struct("<4sHH16s32s")
_NO_CLUSTER = bytes(16)


class Purpose(Enum):
    """What a connection is for: its magic, and the first part of the label of a proof."""

    PEER = b"TRLH", b"tailrace peer 1 "
    REPLICATION = b"TRLR", b"tailrace replication 1 "
    FORWARDING = b"TRLF", b"tailrace forwarding 1 "

    @property
    def magic(self) -> bytes:
        """The first bytes of a greeting."""
        return self.value[0]

    @property
    def label(self) -> bytes:
        """What the side is appended to."""
        return self.value[1]


class Side(Enum):
    """Who a broker is in a connection; the value goes into its proof."""

    DIALLER = b"dialler"
    ACCEPTOR = b"acceptor"


class PeerIdentity(NamedTuple):
    """Who a broker says that it is; no cluster: it belongs to none yet."""

    ordinal: int
    cluster_id: UUID | None


class Handshake:
    """One side of it. `peer`: who is at the other end, once that is sure; `purpose`: what for."""

    def __init__(
        self,
        side: Side,
        me: PeerIdentity,
        *,
        secret: bytes,
        nonce: bytes,
        wanted: int | None = None,
        purpose: Purpose = Purpose.PEER,
        others: Sequence[Purpose] = (),
    ) -> None:
        """`nonce`: fresh random bytes; `wanted`: the ordinal that a dialler expects to meet.

        `others`: for which an acceptor is dialled too; then `purpose` is the dialler's.
        """
        assert len(nonce) == NONCE_BYTES
        assert (wanted is not None) == (side is Side.DIALLER)
        self.peer: PeerIdentity | None = None
        self._side = side
        self._me = me
        self._secret = secret
        self._wanted = wanted
        self.purpose = purpose
        self._others = others
        self._nonce = nonce
        self._mine = _greeting(purpose, me, nonce)
        self._theirs = b""
        self._received = bytearray()

    @property
    def is_greeted(self) -> bool:
        """The other side has said who it is; whether that is true is shown by its proof."""
        return bool(self._theirs)

    def first_words(self) -> bytes:
        """Return what is sent before anything came: the dialler's greeting."""
        return self._mine if self._side is Side.DIALLER else b""

    def feed(self, received: bytes) -> bytes:
        """Return what to send now; HandshakeError: nothing, and the connection is to be closed."""
        assert self.peer is None
        self._received += received
        answer = b""
        if not self.is_greeted and len(self._received) >= GREETING.size:
            theirs = self._take(GREETING.size)
            for other in self._others:
                if theirs.startswith(other.magic):
                    self.purpose = other
                    self._mine = _greeting(other, self._me, self._nonce)
            _check_protocol(self.purpose, theirs)
            self._theirs = theirs
            if self._side is Side.ACCEPTOR:
                answer = self._mine + self._proof(Side.ACCEPTOR)
        if self.is_greeted and len(self._received) >= PROOF_BYTES:
            # What it says of itself counts only now.
            self._check_proof(self._take(PROOF_BYTES))
            identity = _identity(self._theirs)
            self._check_ordinal(identity)
            self._check_cluster(identity)
            self.peer = identity
            if self._side is Side.DIALLER:
                answer = self._proof(Side.DIALLER)
        return answer

    def rest(self) -> bytes:
        """Return the frames that came behind the handshake."""
        assert self.peer is not None
        return self._take(len(self._received))

    def _take(self, count: int) -> bytes:
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def _proof(self, side: Side) -> bytes:
        greetings = [self._mine, self._theirs]
        if self._side is Side.ACCEPTOR:
            greetings.reverse()
        label = self.purpose.label + side.value
        return hmac.digest(self._secret, b"".join([label, *greetings]), "sha256")

    def _check_proof(self, proof: bytes) -> None:
        other = Side.ACCEPTOR if self._side is Side.DIALLER else Side.DIALLER
        if not hmac.compare_digest(proof, self._proof(other)):
            raise HandshakeError(
                "it does not know this ring's secret; give all brokers of a ring the same "
                "TAILRACE_RING_SECRET",
                reason="secret",
            )

    def _check_ordinal(self, peer: PeerIdentity) -> None:
        if peer.ordinal == self._me.ordinal:
            raise HandshakeError(
                f"it says that it is broker {peer.ordinal}, as this one is; give each broker its "
                "own TAILRACE_ORDINAL, and check TAILRACE_PEER_HOST",
                reason="ordinal",
            )
        if self._wanted not in (None, peer.ordinal):
            raise HandshakeError(
                f"it says that it is broker {peer.ordinal}, at the address of broker "
                f"{self._wanted}; check TAILRACE_PEER_HOST and TAILRACE_ORDINAL",
                reason="ordinal",
            )

    def _check_cluster(self, peer: PeerIdentity) -> None:
        mine, theirs = self._me.cluster_id, peer.cluster_id
        if mine is not None and theirs is not None and mine != theirs:
            raise HandshakeError(
                f"it belongs to the ring {theirs}, this broker to the ring {mine}; check "
                "TAILRACE_PEER_HOST, or start the one that is wrong here with an empty data "
                "directory",
                reason="cluster",
            )


def _greeting(purpose: Purpose, me: PeerIdentity, nonce: bytes) -> bytes:
    cluster = _NO_CLUSTER if me.cluster_id is None else me.cluster_id.bytes
    return GREETING.pack(purpose.magic, VERSION, me.ordinal, cluster, nonce)


def _check_protocol(purpose: Purpose, greeting: bytes) -> None:
    magic, version, *_ = GREETING.unpack(greeting)
    if magic != purpose.magic:
        raise HandshakeError(
            "it does not speak as brokers do with each other; check TAILRACE_PEER_HOST and the "
            "ports",
            reason="magic",
        )
    if version != VERSION:
        raise HandshakeError(
            f"it speaks version {version} of the protocol between brokers, this broker {VERSION}; "
            "run versions that are made for each other",
            reason="version",
        )


def _identity(greeting: bytes) -> PeerIdentity:
    _, _, ordinal, cluster, _ = GREETING.unpack(greeting)
    return PeerIdentity(ordinal, None if cluster == _NO_CLUSTER else UUID(bytes=cluster))
