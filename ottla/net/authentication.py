"""Inter-broker authentication: SASL mechanism OTTLA-CLUSTER.

All brokers of a cluster share one secret: thirty-two random bytes in the cluster's store. It is never sent. In the
frames of SaslHandshake and SaslAuthenticate (KIP-152), with C the connecting broker and S the accepting one:

    C -> S   version, id of C, id of S, nonce of C
    S -> C   nonce of S, HMAC-SHA256(secret, "S" + everything above + nonce of S)
    C -> S   HMAC-SHA256(secret, "C" + the same)
    S -> C   (empty: authenticated)

Nonces are made for one connection, so a proof cannot be replayed on another one. The two proofs differ in their first
byte, so a proof cannot be reflected to its sender. Both cover the ids of both brokers: a broker cannot impersonate
another, and an address that another process has taken is noticed. Requests afterwards are neither encrypted nor signed:
the inter-broker network is trusted.

Pure: nonces come from the caller. Comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

MECHANISM: Final = "OTTLA-CLUSTER"
NONCE_BYTES: Final = 32
SECRET_BYTES: Final = 32
PROOF_BYTES: Final = hashlib.sha256().digest_size

_VERSION: Final = 1
_HELLO: Final = struct.Struct(f">Bii{NONCE_BYTES}s")
_CONNECTING: Final = b"C"
_ACCEPTING: Final = b"S"


class AuthenticationFailed(Exception):
    """The peer could not be authenticated. The text is for our log, not for the peer."""


class BrokerIdentity(NamedTuple):
    """This broker's id, and the secret of the cluster."""

    broker_id: int
    secret: bytes


def _proof(secret: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, side + hello + nonce, "sha256")


class Connecting:
    """The side of the broker that connects to `peer_id`."""

    __slots__ = ("_identity", "hello")

    def __init__(self, identity: BrokerIdentity, peer_id: int, nonce: bytes) -> None:
        self._identity = identity
        self.hello: Final = _HELLO.pack(_VERSION, identity.broker_id, peer_id, nonce)
        """The first message."""

    def answer(self, challenge: bytes) -> bytes:
        """Our proof, after checking the proof of the peer."""
        nonce, proof = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        secret = self._identity.secret
        if not hmac.compare_digest(proof, _proof(secret, _ACCEPTING, self.hello, nonce)):
            raise AuthenticationFailed("it does not know the secret of this cluster, or is another broker")
        return _proof(secret, _CONNECTING, self.hello, nonce)


class Accepting:
    """The side of the accepting broker, for one attempt."""

    __slots__ = ("_expected", "_identity", "_nonce", "_peer")

    def __init__(self, identity: BrokerIdentity, nonce: bytes) -> None:
        self._identity = identity
        self._nonce = nonce
        self._expected: bytes | None = None
        self._peer = -1

    def receive(self, data: bytes) -> tuple[bytes, int | None]:
        """The response, and after the last step the id of the authenticated broker."""
        if self._expected is None:
            return self._challenge(data), None
        if not hmac.compare_digest(data, self._expected):
            raise AuthenticationFailed(f"a wrong proof from one that says it is broker {self._peer}")
        return b"", self._peer

    def _challenge(self, hello: bytes) -> bytes:
        try:
            version, peer, called, _ = _HELLO.unpack(hello)
        except struct.error:
            raise AuthenticationFailed(f"{len(hello)} bytes that are no greeting") from None
        me, secret = self._identity
        if version != _VERSION:
            raise AuthenticationFailed(f"a greeting of version {version}, this release knows {_VERSION}")
        if called != me:
            raise AuthenticationFailed(f"broker {peer} looks for broker {called} at the address of broker {me}")
        if peer < 0:
            raise AuthenticationFailed(f"{peer} is no broker id")
        self._peer = peer
        self._expected = _proof(secret, _CONNECTING, hello, self._nonce)
        return self._nonce + _proof(secret, _ACCEPTING, hello, self._nonce)
