"""Lies of who is to prove a key; they need --key."""

from argparse import Namespace
from dataclasses import replace

import keyed
import wire
from lies import ANSWER, Untold, lie
from wire import Kind, RdmaHeader


def _flip(data, index):
    """Return the bytes with one bit changed."""
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1:]


def _without_key(liar):
    """Have the liar know of no key."""
    if liar.options.key is None:
        raise Untold("(it needs --key)")
    liar.options = Namespace(**{**vars(liar.options), "key": None})


# as the end that asks


def _challenged(liar):
    """Ask without a proof, and take the challenge."""
    session = liar.start()
    if session.keyed is None:
        raise Untold("(it needs --key)")
    liar.say(liar.request())
    answer = session.take_answer("a challenge")
    if answer.segment.header.is_error != wire.IS_CHALLENGE:
        raise Untold(f"(answered {wire.kind_name(answer.kind)})")
    session.keyed.challenged(answer.ce.security)
    return session


def _proven(session, skip=0):
    """Return the CE header of the next request, with its proof."""
    number = wire.after(session.talk.next_number, skip)
    ce = session.keyed.request(number, session.hello.ce())
    session.talk.propose(ce)
    return ce


def _request_lie(name, change, expected="reject"):
    """Enter a lie that is a change to the CE header with the proof."""
    @lie("keyed-" + name, expected, apart=True, asks=True)
    def tell(liar):
        ce = _proven(_challenged(liar))
        ce = replace(ce, **change(ce))
        liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=ce))


_request_lie("no-proof", lambda ce: {"security": b""})
_request_lie("form-2", lambda ce: {"security": b"\x02" + ce.security[1:]})
_request_lie("nonce-other", lambda ce: {"security": _flip(ce.security, 1)})
_request_lie("proof-wrong", lambda ce: {"security": _flip(ce.security, 64)})
_request_lie("proof-short", lambda ce: {"security": ce.security[:-1]})
_request_lie("own-other", lambda ce: {"security": ce.security + b"own"})
_request_lie("own-192", lambda ce: {"security": ce.security + bytes(192)},
             "closed")
_request_lie("mtu-other", lambda ce: {"mtu": ce.mtu - 1})
_request_lie("attributes-other", lambda ce: {
    "attributes": ce.attributes ^ wire.FLOW_CONTROL})
_request_lie("reads-other", lambda ce: {"read_window": ce.read_window + 1})
_request_lie("calling-other", lambda ce: {"calling": b"another"})
_request_lie("called-other", lambda ce: {"called": b"another"})


def _proof_lie(name, change):
    """Enter a lie that is a proof of something else."""
    @lie("keyed-" + name, "reject", apart=True, asks=True)
    def tell(liar):
        session = _challenged(liar)
        change(session.keyed)
        ce = _proven(session)
        liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=ce))


def _change_key(end):
    end.key = _flip(end.key, 0)


def _change_challenge(end):
    end.challenge = _flip(end.challenge, 0)


def _change_hosts(end):
    end.hosts = end.hosts[16:] + end.hosts[:16]


def _change_label(end):
    prove = end.proof
    end.proof = lambda _, *said: prove(keyed.ACCEPT, *said)


_proof_lie("key-other", _change_key)
_proof_lie("challenge-other", _change_challenge)
_proof_lie("hosts-swapped", _change_hosts)
_proof_lie("label-other", _change_label)


@lie("keyed-number-other", "reject", apart=True, asks=True)
def _number_other(liar):
    """The proof is of another Message Number."""
    ce = _proven(_challenged(liar), skip=1)
    liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=ce))


@lie("keyed-number-skipped", "reject", apart=True, asks=True)
def _number_skipped(liar):
    """The proof is right, and a Message Number is left out."""
    session = _challenged(liar)
    session.talk.next_number = wire.after(session.talk.next_number)
    liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=_proven(session)))


@lie("keyed-replayed", "reject", apart=True, asks=True)
def _replayed(liar):
    """The proof of an earlier connection, which was accepted."""
    session = liar.connect()
    end = session.keyed
    session.sock.close()
    _challenged(liar).keyed.nonce = end.nonce
    liar.session.keyed.challenge = end.challenge
    liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=_proven(liar.session)))


@lie("keyed-unasked", "reject", apart=True, asks=True)
def _unasked(liar):
    """A proof of a challenge of our own, before there is another."""
    session = liar.start()
    if session.keyed is None:
        raise Untold("(it needs --key)")
    session.keyed.challenged(keyed.FORM + bytes(keyed.NONCE_BYTES))
    liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=_proven(session)))


@lie("keyed-silence", "closed", apart=True, asks=True)
def _silence(liar):
    """Nothing behind the challenge."""
    _challenged(liar)


@lie("keyed-send", "closed", apart=True, asks=True)
def _send(liar):
    """A Send instead of a proof."""
    _challenged(liar)
    liar.say(liar.segment(Kind.SEND, b"early"))


@lie("keyed-write", "closed", apart=True, asks=True)
def _write(liar):
    """An RDMA Write instead of a proof."""
    _challenged(liar)
    rdma = RdmaHeader(0x10000, 1, 5)
    liar.say(liar.segment(Kind.WRITE, b"early", rdma=rdma))


@lie("keyed-write-behind", "reject", "closed", apart=True, asks=True)
def _write_behind(liar):
    """An RDMA Write right behind a wrong proof."""
    ce = _proven(_challenged(liar))
    ce = replace(ce, security=_flip(ce.security, 64))
    rdma = RdmaHeader(0x10000, 1, 5)
    liar.say(
        liar.segment(Kind.CONNECT_REQUEST, ce=ce).pack()
        + liar.segment(Kind.WRITE, b"early", rdma=rdma).pack()
    )


@lie("keyed-cut", "accept", apart=True, asks=True)
def _cut(liar):
    """Ends at many places of the proof in turn; then is honest."""
    for position in range(0, 133, 7):
        ce = _proven(_challenged(liar))
        request = liar.segment(Kind.CONNECT_REQUEST, ce=ce)
        liar.say(request.pack()[:position])
        liar.session.sock.close()
    return liar.still_serves()


@lie("keyed-in-pieces", "accept", apart=True, asks=True)
def _in_pieces(liar):
    """The proof comes byte by byte."""
    session = _challenged(liar)
    session.split = 1
    liar.say(liar.segment(Kind.CONNECT_REQUEST, ce=_proven(session)))


# as the end that is asked


def _challenge_lie(name, security):
    """Enter a lie that is a challenge of these bytes."""
    @lie(ANSWER + "keyed-challenge-" + name, "closed", apart=True)
    def tell(liar):
        _without_key(liar)
        _challenge(liar, liar.asked(), security)


def _challenge(liar, request, security):
    """Say a challenge."""
    ce = replace(liar.acceptance(request).ce, security=security)
    liar.say(liar.segment(
        Kind.CONNECT_REJECT, ce=ce, is_error=wire.IS_CHALLENGE
    ))


_challenge_lie("empty", b"")
_challenge_lie("short", keyed.FORM + bytes(31))
_challenge_lie("long", keyed.FORM + bytes(33))
_challenge_lie("form-2", b"\x02" + bytes(32))


@lie(ANSWER + "keyed-unchallenged", "closed", apart=True)
def _answer_unchallenged(liar):
    """A Connect Accept of somebody without the key."""
    _without_key(liar)
    liar.say(liar.acceptance(liar.asked()))


@lie(ANSWER + "keyed-twice", "closed", apart=True)
def _answer_twice(liar):
    """A second challenge behind the proof."""
    request = liar.asked()
    _challenge(liar, request, liar.session.keyed.new_challenge())


@lie(ANSWER + "keyed-reflected", "closed", apart=True)
def _answer_reflected(liar):
    """The proof of the request in the Connect Accept."""
    request = liar.asked()
    proof = request.security[1 + keyed.NONCE_BYTES:][:keyed.PROOF_BYTES]
    liar.say(liar.acceptance(request, security=keyed.FORM + proof))


def _accept_lie(name, change):
    """Enter a lie that is a change to a Connect Accept with its proof."""
    @lie(ANSWER + "keyed-" + name, "closed", apart=True)
    def tell(liar):
        accept = liar.proven(liar.acceptance(liar.asked()))
        ce = replace(accept.ce, **change(accept.ce))
        liar.say(replace(accept, ce=ce))


_accept_lie("no-proof", lambda ce: {"security": b""})
_accept_lie("form-2", lambda ce: {"security": b"\x02" + ce.security[1:]})
_accept_lie("proof-wrong", lambda ce: {"security": _flip(ce.security, 1)})
_accept_lie("proof-short", lambda ce: {"security": ce.security[:-1]})
_accept_lie("own-other", lambda ce: {"security": ce.security + b"own"})
_accept_lie("mtu-other", lambda ce: {"mtu": ce.mtu - 1})
_accept_lie("reads-other", lambda ce: {"read_window": ce.read_window + 1})


def _accept_proof_lie(name, change):
    """Enter a lie that is an acceptance with a proof of something else."""
    @lie(ANSWER + "keyed-" + name, "closed", apart=True)
    def tell(liar):
        request = liar.asked()
        change(liar.session.keyed)
        liar.say(liar.proven(liar.acceptance(request)))


_accept_proof_lie("key-other", _change_key)
_accept_proof_lie("challenge-other", _change_challenge)
_accept_proof_lie("hosts-swapped", _change_hosts)
