"""Inter-broker authentication: OTTLA-CLUSTER."""

from __future__ import annotations

import pytest

from ottla.net.authentication import (
    NONCE_BYTES,
    PROOF_BYTES,
    SECRET_BYTES,
    Accepting,
    AuthenticationFailed,
    BrokerIdentity,
    Connecting,
)

SECRET = bytes(range(SECRET_BYTES))
ONE = BrokerIdentity(1, SECRET)
TWO = BrokerIdentity(2, SECRET)


def nonce(number: int) -> bytes:
    return bytes([number]) * NONCE_BYTES


def test_both_sides_authenticate():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, known = accepting.receive(connecting.hello)
    assert known is None
    assert accepting.receive(connecting.answer(challenge)) == (b"", 1)


def test_the_secret_is_never_sent():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(connecting.hello)
    said = connecting.hello + challenge + connecting.answer(challenge)
    assert SECRET not in said


def test_a_peer_without_the_secret_is_not_authenticated():
    outsider = Connecting(BrokerIdentity(1, bytes(SECRET_BYTES)), 2, nonce(1))
    accepting = Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(outsider.hello)
    with pytest.raises(AuthenticationFailed, match="does not know the secret"):
        outsider.answer(challenge)
    with pytest.raises(AuthenticationFailed, match="wrong proof"):
        accepting.receive(bytes(PROOF_BYTES))


def test_a_peer_without_the_secret_gets_no_proof():
    challenge = nonce(9) + bytes(PROOF_BYTES)
    with pytest.raises(AuthenticationFailed):
        Connecting(ONE, 2, nonce(1)).answer(challenge)


def test_a_proof_cannot_be_replayed_on_another_connection():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(connecting.hello)
    overheard = connecting.answer(challenge)
    later = Accepting(TWO, nonce(3))
    later.receive(connecting.hello)
    with pytest.raises(AuthenticationFailed):
        later.receive(overheard)


def test_a_challenge_cannot_be_reflected():
    """The accepting broker's own proof is none for the other side, even with all nonces the same."""
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(connecting.hello)
    with pytest.raises(AuthenticationFailed):
        accepting.receive(challenge[NONCE_BYTES:])


def test_a_broker_cannot_impersonate_another():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    as_three = Connecting(BrokerIdentity(3, SECRET), 2, nonce(1))
    challenge, _ = accepting.receive(as_three.hello)
    own = Accepting(TWO, nonce(2))
    own_challenge, _ = own.receive(connecting.hello)
    with pytest.raises(AuthenticationFailed):
        accepting.receive(connecting.answer(own_challenge))
    with pytest.raises(AuthenticationFailed):
        connecting.answer(challenge)


def test_an_address_that_another_broker_has_taken_is_noticed():
    connecting = Connecting(ONE, 3, nonce(1))
    with pytest.raises(AuthenticationFailed, match="broker 1 looks for broker 3 at the address of broker 2"):
        Accepting(TWO, nonce(2)).receive(connecting.hello)


@pytest.mark.parametrize("hello", [b"", b"x", bytes(1000), Connecting(ONE, 2, nonce(1)).hello[:-1]])
def test_malformed_first_messages_are_refused(hello):
    with pytest.raises(AuthenticationFailed):
        Accepting(TWO, nonce(2)).receive(hello)


def test_a_negative_broker_id_is_refused():
    with pytest.raises(AuthenticationFailed, match="-1 is no broker id"):
        Accepting(TWO, nonce(2)).receive(Connecting(BrokerIdentity(-1, SECRET), 2, nonce(1)).hello)


@pytest.mark.parametrize("proof", [b"", b"short", bytes(PROOF_BYTES), bytes(PROOF_BYTES * 2)])
def test_a_proof_of_any_length_is_compared_and_refused(proof):
    accepting = Accepting(TWO, nonce(2))
    accepting.receive(Connecting(ONE, 2, nonce(1)).hello)
    with pytest.raises(AuthenticationFailed):
        accepting.receive(proof)
