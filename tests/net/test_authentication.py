"""Two brokers prove to each other that they know the cluster's secret, and nobody else can."""

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


def test_each_is_convinced_of_the_other():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, known = accepting.receive(connecting.hello)
    assert known is None
    assert accepting.receive(connecting.answer(challenge)) == (b"", 1)


def test_the_secret_is_never_sent():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(connecting.hello)
    said = connecting.hello + challenge + connecting.answer(challenge)
    assert SECRET not in said


def test_one_that_does_not_know_the_secret_is_not_let_in():
    stranger = Connecting(BrokerIdentity(1, bytes(SECRET_BYTES)), 2, nonce(1))
    accepting = Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(stranger.hello)
    with pytest.raises(AuthenticationFailed, match="does not know the secret"):
        stranger.answer(challenge)
    with pytest.raises(AuthenticationFailed, match="wrong proof"):
        accepting.receive(bytes(PROOF_BYTES))


def test_one_that_does_not_know_the_secret_learns_no_proof_of_ours():
    challenge = nonce(9) + bytes(PROOF_BYTES)
    with pytest.raises(AuthenticationFailed):
        Connecting(ONE, 2, nonce(1)).answer(challenge)


def test_a_proof_that_was_overheard_is_worth_nothing_on_another_connection():
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(connecting.hello)
    overheard = connecting.answer(challenge)
    later = Accepting(TWO, nonce(3))
    later.receive(connecting.hello)
    with pytest.raises(AuthenticationFailed):
        later.receive(overheard)


def test_a_challenge_cannot_be_played_back_to_whoever_made_it():
    """The accepting broker's own proof is none for the other side, even with all nonces the same."""
    connecting, accepting = Connecting(ONE, 2, nonce(1)), Accepting(TWO, nonce(2))
    challenge, _ = accepting.receive(connecting.hello)
    with pytest.raises(AuthenticationFailed):
        accepting.receive(challenge[NONCE_BYTES:])


def test_a_broker_cannot_pass_for_another_with_a_proof_of_its_own():
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
def test_what_is_no_greeting_is_refused(hello):
    with pytest.raises(AuthenticationFailed):
        Accepting(TWO, nonce(2)).receive(hello)


def test_nobody_is_broker_minus_one():
    with pytest.raises(AuthenticationFailed, match="-1 is no broker id"):
        Accepting(TWO, nonce(2)).receive(Connecting(BrokerIdentity(-1, SECRET), 2, nonce(1)).hello)


@pytest.mark.parametrize("proof", [b"", b"short", bytes(PROOF_BYTES), bytes(PROOF_BYTES * 2)])
def test_a_proof_of_any_length_is_compared_and_refused(proof):
    accepting = Accepting(TWO, nonce(2))
    accepting.receive(Connecting(ONE, 2, nonce(1)).hello)
    with pytest.raises(AuthenticationFailed):
        accepting.receive(proof)
