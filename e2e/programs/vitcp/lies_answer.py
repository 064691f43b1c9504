"""Lies about the answer to a Connect Request [VI/TCP 3.2, 4.2]."""

import socket

import wire
from lies import ANSWER, garbage, lie
from wire import Kind


def _answer_lie(name, header=None, ce=None):
    """Enter a lie that is a changed Connect Accept.

    `ce` makes the changes to the CE header from that of the request.  Who
    finds nothing wrong is expected to leave.
    """
    @lie(ANSWER + name, "closed")
    def tell(liar):
        request = liar.asked()
        accept = liar.acceptance(request, **(ce(request) if ce else {}))
        if header:
            changes = header(accept.header)
            accept = liar.wrong(accept, **changes)
        liar.say(accept)


_answer_lie("version-2", header=lambda head: {"version": 2})
_answer_lie("type-9", header=lambda head: {"kind": 9})
_answer_lie("with-request", header=lambda head: {"kind": Kind.CONNECT_REQUEST})
_answer_lie("length-67", header=lambda head: {"length": 67})
_answer_lie("length-325", header=lambda head: {"length": 325})
_answer_lie("without-end", header=lambda head: {"flags": 0})
_answer_lie("offset-1", header=lambda head: {"offset": 1})
_answer_lie("immediate", header=lambda head: {
    "flags": head.flags | wire.IMMEDIATE})
_answer_lie("transmit-error", header=lambda head: {
    "flags": head.flags | wire.TRANSMIT_ERROR})
_answer_lie("vi-error-1", header=lambda head: {"vi_error": 1})
_answer_lie("is-error-16", header=lambda head: {"is_error": 16})
_answer_lie("ack-wrong", header=lambda head: {"ack": wire.after(head.ack)})
_answer_lie("mtu-0", ce=lambda request: {"mtu": 0})
_answer_lie("mtu-larger", ce=lambda request: {"mtu": request.mtu + 1})
_answer_lie("calling-other", ce=lambda request: {"calling": b"another"})
_answer_lie("called-other", ce=lambda request: {"called": b"another"})
_answer_lie("calling-length-17", ce=lambda request: {"calling_length": 17})
_answer_lie("called-length-17", ce=lambda request: {"called_length": 17})
_answer_lie("reliable-other", ce=lambda request: {
    "attributes": request.attributes & ~wire.LEVEL_MASK ^ wire.RELIABLE})
_answer_lie("level-3", ce=lambda request: {
    "attributes": request.attributes | wire.LEVEL_MASK})
_answer_lie("attribute-bits", ce=lambda request: {
    "attributes": request.attributes | wire.RESERVED_ATTRIBUTES})
_answer_lie("security-257", ce=lambda request: {"security": bytes(257)})


@lie("answer-nothing", "kept", mute=True)
def _answer_nothing(liar):
    """No answer; the caller may give up [VI/TCP 4.2]."""
    liar.asked()


@lie("answer-half", "kept", mute=True)
def _answer_half(liar):
    """Half of a Connect Accept, then nothing."""
    liar.say(liar.acceptance(liar.asked()).pack()[:34])


@lie("answer-close-half", "closed")
def _answer_close_half(liar):
    """Half of a Connect Accept, then FIN."""
    liar.say(liar.acceptance(liar.asked()).pack()[:34])
    liar.session.sock.shutdown(socket.SHUT_WR)


@lie("answer-garbage", "closed")
def _answergarbage(liar):
    """Random bytes instead of an answer."""
    liar.asked()
    liar.say(garbage(liar))


@lie("answer-send", "closed")
def _answer_send(liar):
    """A Send instead of an answer."""
    liar.asked()
    liar.say(liar.segment(Kind.SEND, b"early"))


@lie("answer-twice", "closed")
def _answer_twice(liar):
    """Two Connect Accepts."""
    request = liar.asked()
    liar.say(liar.acceptance(request), liar.acceptance(request))


@lie("answer-reject-open", "closed")
def _answer_reject_open(liar):
    """A Connect Reject behind which the connection stays open."""
    liar.asked()
    liar.say(liar.segment(Kind.CONNECT_REJECT, is_error=wire.IS_REJECTED))


@lie("answer-no-match-open", "closed")
def _answer_no_match_open(liar):
    """A Connect No Match behind which the connection stays open."""
    liar.asked()
    liar.say(liar.segment(Kind.CONNECT_NO_MATCH))


@lie("answer-reject-long", "closed")
def _answer_reject_long(liar):
    """A Connect Reject with bytes behind its header."""
    liar.asked()
    liar.say(liar.segment(Kind.CONNECT_REJECT, bytes(8)))


@lie("answer-challenge-bare", "closed")
def _answer_challenge_bare(liar):
    """A challenge without a CE header."""
    liar.asked()
    liar.say(liar.segment(Kind.CONNECT_REJECT, is_error=wire.IS_CHALLENGE))
