"""Malformed key proofs; these cases need --key."""

from argparse import Namespace
from dataclasses import replace

import key_proof
import wire
from malformed_cases import ANSWER, NotRun, case
from wire import Kind, RdmaHeader


def _flip(data, index):
    """Return the bytes with one bit changed."""
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1:]


def _without_key(sender):
    """Remove the key from the options."""
    if sender.options.key is None:
        raise NotRun("(it needs --key)")
    sender.options = Namespace(**{**vars(sender.options), "key": None})


# as client


def _challenged(sender):
    """Send a request without a proof, and store the challenge."""
    session = sender.start()
    if session.keyed is None:
        raise NotRun("(it needs --key)")
    sender.send(sender.make_request())
    answer = session.take_answer("a challenge")
    if answer.segment.header.is_error != wire.IS_CHALLENGE:
        raise NotRun(f"(answered {wire.kind_name(answer.kind)})")
    session.keyed.challenged(answer.ce.security)
    return session


def _proven(session, skip=0):
    """Return the CE header of the next request, with its proof."""
    number = wire.after(session.connection.next_number, skip)
    ce = session.keyed.request(number, session.parameters.ce())
    session.connection.propose(ce)
    return ce


def _request_case(name, change, expected="reject"):
    """Add a case with a changed CE header with proof."""
    @case("keyed-" + name, expected, by_name_only=True, client_only=True)
    def run(sender):
        ce = _proven(_challenged(sender))
        ce = replace(ce, **change(ce))
        sender.send(sender.segment(Kind.CONNECT_REQUEST, ce=ce))


_request_case("no-proof", lambda ce: {"security": b""})
_request_case("form-2", lambda ce: {"security": b"\x02" + ce.security[1:]})
_request_case("nonce-other", lambda ce: {"security": _flip(ce.security, 1)})
_request_case("proof-wrong", lambda ce: {"security": _flip(ce.security, 64)})
_request_case("proof-short", lambda ce: {"security": ce.security[:-1]})
_request_case("own-other", lambda ce: {"security": ce.security + b"own"})
_request_case("own-192", lambda ce: {"security": ce.security + bytes(192)},
              "closed")
_request_case("mtu-other", lambda ce: {"mtu": ce.mtu - 1})
_request_case("attributes-other", lambda ce: {
    "attributes": ce.attributes ^ wire.FLOW_CONTROL})
_request_case("reads-other", lambda ce: {"read_window": ce.read_window + 1})
_request_case("calling-other", lambda ce: {"calling": b"another"})
_request_case("called-other", lambda ce: {"called": b"another"})


def _proof_case(name, change):
    """Add a case with a proof of other data."""
    @case("keyed-" + name, "reject", by_name_only=True, client_only=True)
    def run(sender):
        session = _challenged(sender)
        change(session.keyed)
        ce = _proven(session)
        sender.send(sender.segment(Kind.CONNECT_REQUEST, ce=ce))


def _change_key(end):
    end.key = _flip(end.key, 0)


def _change_challenge(end):
    end.challenge = _flip(end.challenge, 0)


def _change_hosts(end):
    end.hosts = end.hosts[16:] + end.hosts[:16]


def _change_label(end):
    prove = end.proof
    end.proof = lambda _, *args: prove(key_proof.ACCEPT, *args)


_proof_case("key-other", _change_key)
_proof_case("challenge-other", _change_challenge)
_proof_case("hosts-swapped", _change_hosts)
_proof_case("label-other", _change_label)


@case("keyed-number-other", "reject", by_name_only=True, client_only=True)
def _number_other(sender):
    """The proof is of another Message Number."""
    ce = _proven(_challenged(sender), skip=1)
    sender.send(sender.segment(Kind.CONNECT_REQUEST, ce=ce))


@case("keyed-number-skipped", "reject", by_name_only=True, client_only=True)
def _number_skipped(sender):
    """The proof is valid, but a Message Number is skipped."""
    session = _challenged(sender)
    session.connection.next_number = wire.after(session.connection.next_number)
    sender.send(sender.segment(Kind.CONNECT_REQUEST, ce=_proven(session)))


@case("keyed-replayed", "reject", by_name_only=True, client_only=True)
def _replayed(sender):
    """The proof of an earlier connection, which was accepted."""
    session = sender.connect()
    end = session.keyed
    session.sock.close()
    _challenged(sender).keyed.nonce = end.nonce
    sender.session.keyed.challenge = end.challenge
    sender.send(sender.segment(
        Kind.CONNECT_REQUEST, ce=_proven(sender.session)
    ))


@case("keyed-unsolicited", "reject", by_name_only=True, client_only=True)
def _unsolicited(sender):
    """A proof of an own challenge, before the server's challenge."""
    session = sender.start()
    if session.keyed is None:
        raise NotRun("(it needs --key)")
    session.keyed.challenged(key_proof.FORM + bytes(key_proof.NONCE_BYTES))
    sender.send(sender.segment(Kind.CONNECT_REQUEST, ce=_proven(session)))


@case("keyed-silence", "closed", by_name_only=True, client_only=True)
def _silence(sender):
    """Nothing after the challenge."""
    _challenged(sender)


@case("keyed-send", "closed", by_name_only=True, client_only=True)
def _send(sender):
    """A Send instead of a proof."""
    _challenged(sender)
    sender.send(sender.segment(Kind.SEND, b"early"))


@case("keyed-write", "closed", by_name_only=True, client_only=True)
def _write(sender):
    """An RDMA Write instead of a proof."""
    _challenged(sender)
    rdma = RdmaHeader(0x10000, 1, 5)
    sender.send(sender.segment(Kind.WRITE, b"early", rdma=rdma))


@case("keyed-write-after-proof", "reject", "closed", by_name_only=True,
      client_only=True)
def _write_after_proof(sender):
    """An RDMA Write directly after a wrong proof."""
    ce = _proven(_challenged(sender))
    ce = replace(ce, security=_flip(ce.security, 64))
    rdma = RdmaHeader(0x10000, 1, 5)
    sender.send(
        sender.segment(Kind.CONNECT_REQUEST, ce=ce).pack()
        + sender.segment(Kind.WRITE, b"early", rdma=rdma).pack()
    )


@case("keyed-cut", "accept", by_name_only=True, client_only=True)
def _cut(sender):
    """Truncates the proof at many offsets; then a valid connection."""
    for position in range(0, 133, 7):
        ce = _proven(_challenged(sender))
        request = sender.segment(Kind.CONNECT_REQUEST, ce=ce)
        sender.send(request.pack()[:position])
        sender.session.sock.close()
    return sender.reconnect()


@case("keyed-in-pieces", "accept", by_name_only=True, client_only=True)
def _in_pieces(sender):
    """The proof is sent byte by byte."""
    session = _challenged(sender)
    session.split = 1
    sender.send(sender.segment(Kind.CONNECT_REQUEST, ce=_proven(session)))


# as server


def _challenge_case(name, security):
    """Add a case with a challenge of these bytes."""
    @case(ANSWER + "keyed-challenge-" + name, "closed", by_name_only=True)
    def run(sender):
        _without_key(sender)
        _challenge(sender, sender.receive_request(), security)


def _challenge(sender, request, security):
    """Send a challenge."""
    ce = replace(sender.make_accept(request).ce, security=security)
    sender.send(sender.segment(
        Kind.CONNECT_REJECT, ce=ce, is_error=wire.IS_CHALLENGE
    ))


_challenge_case("empty", b"")
_challenge_case("short", key_proof.FORM + bytes(31))
_challenge_case("long", key_proof.FORM + bytes(33))
_challenge_case("form-2", b"\x02" + bytes(32))


@case(ANSWER + "keyed-unchallenged", "closed", by_name_only=True)
def _answer_unchallenged(sender):
    """A Connect Accept without a challenge."""
    _without_key(sender)
    sender.send(sender.make_accept(sender.receive_request()))


@case(ANSWER + "keyed-twice", "closed", by_name_only=True)
def _answer_twice(sender):
    """A second challenge after the proof."""
    request = sender.receive_request()
    _challenge(sender, request, sender.session.keyed.new_challenge())


@case(ANSWER + "keyed-reflected", "closed", by_name_only=True)
def _answer_reflected(sender):
    """The proof of the request, reflected in the Connect Accept."""
    request = sender.receive_request()
    proof = request.security[1 + key_proof.NONCE_BYTES:]
    proof = proof[:key_proof.PROOF_BYTES]
    sender.send(sender.make_accept(request, security=key_proof.FORM + proof))


def _accept_case(name, change):
    """Add a case with a changed Connect Accept with proof."""
    @case(ANSWER + "keyed-" + name, "closed", by_name_only=True)
    def run(sender):
        accept = sender.make_accept(sender.receive_request())
        accept = sender.with_proof(accept)
        ce = replace(accept.ce, **change(accept.ce))
        sender.send(replace(accept, ce=ce))


_accept_case("no-proof", lambda ce: {"security": b""})
_accept_case("form-2", lambda ce: {"security": b"\x02" + ce.security[1:]})
_accept_case("proof-wrong", lambda ce: {"security": _flip(ce.security, 1)})
_accept_case("proof-short", lambda ce: {"security": ce.security[:-1]})
_accept_case("own-other", lambda ce: {"security": ce.security + b"own"})
_accept_case("mtu-other", lambda ce: {"mtu": ce.mtu - 1})
_accept_case("reads-other", lambda ce: {"read_window": ce.read_window + 1})


def _accept_proof_case(name, change):
    """Add a case with a Connect Accept with a proof of other data."""
    @case(ANSWER + "keyed-" + name, "closed", by_name_only=True)
    def run(sender):
        request = sender.receive_request()
        change(sender.session.keyed)
        sender.send(sender.with_proof(sender.make_accept(request)))


_accept_proof_case("key-other", _change_key)
_accept_proof_case("challenge-other", _change_challenge)
_accept_proof_case("hosts-swapped", _change_hosts)
