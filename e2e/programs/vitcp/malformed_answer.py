"""Malformed answers to a Connect Request [VI/TCP 3.2, 4.2]."""

import socket

import wire
from malformed_cases import ANSWER, garbage, case
from wire import Kind


def _answer_case(name, header=None, ce=None):
    """Add a case with a changed Connect Accept.

    `ce` returns the changes to the CE header of the request.  A client that
    accepts it is expected to close the connection.
    """
    @case(ANSWER + name, "closed")
    def run(sender):
        request = sender.receive_request()
        accept = sender.make_accept(request, **(ce(request) if ce else {}))
        if header:
            changes = header(accept.header)
            accept = sender.changed(accept, **changes)
        sender.send(accept)


_answer_case("version-2", header=lambda head: {"version": 2})
_answer_case("type-9", header=lambda head: {"kind": 9})
_answer_case("with-request", header=lambda head: {
    "kind": Kind.CONNECT_REQUEST})
_answer_case("length-67", header=lambda head: {"length": 67})
_answer_case("length-325", header=lambda head: {"length": 325})
_answer_case("without-end", header=lambda head: {"flags": 0})
_answer_case("offset-1", header=lambda head: {"offset": 1})
_answer_case("immediate", header=lambda head: {
    "flags": head.flags | wire.IMMEDIATE})
_answer_case("transmit-error", header=lambda head: {
    "flags": head.flags | wire.TRANSMIT_ERROR})
_answer_case("vi-error-1", header=lambda head: {"vi_error": 1})
_answer_case("is-error-16", header=lambda head: {"is_error": 16})
_answer_case("ack-wrong", header=lambda head: {"ack": wire.after(head.ack)})
_answer_case("mtu-0", ce=lambda request: {"mtu": 0})
_answer_case("mtu-larger", ce=lambda request: {"mtu": request.mtu + 1})
_answer_case("calling-other", ce=lambda request: {"calling": b"another"})
_answer_case("called-other", ce=lambda request: {"called": b"another"})
_answer_case("calling-length-17", ce=lambda request: {"calling_length": 17})
_answer_case("called-length-17", ce=lambda request: {"called_length": 17})
_answer_case("reliable-other", ce=lambda request: {
    "attributes": request.attributes & ~wire.LEVEL_MASK ^ wire.RELIABLE})
_answer_case("level-3", ce=lambda request: {
    "attributes": request.attributes | wire.LEVEL_MASK})
_answer_case("attribute-bits", ce=lambda request: {
    "attributes": request.attributes | wire.RESERVED_ATTRIBUTES})
_answer_case("security-257", ce=lambda request: {"security": bytes(257)})


@case("answer-nothing", "open", silent=True)
def _answer_nothing(sender):
    """No answer; the client may time out [VI/TCP 4.2]."""
    sender.receive_request()


@case("answer-half", "open", silent=True)
def _answer_half(sender):
    """Half of a Connect Accept, then nothing."""
    sender.send(sender.make_accept(sender.receive_request()).pack()[:34])


@case("answer-close-half", "closed")
def _answer_close_half(sender):
    """Half of a Connect Accept, then FIN."""
    sender.send(sender.make_accept(sender.receive_request()).pack()[:34])
    sender.session.sock.shutdown(socket.SHUT_WR)


@case("answer-garbage", "closed")
def _answer_garbage(sender):
    """Random bytes instead of an answer."""
    sender.receive_request()
    sender.send(garbage(sender))


@case("answer-send", "closed")
def _answer_send(sender):
    """A Send instead of an answer."""
    sender.receive_request()
    sender.send(sender.segment(Kind.SEND, b"early"))


@case("answer-twice", "closed")
def _answer_twice(sender):
    """Two Connect Accepts."""
    request = sender.receive_request()
    sender.send(sender.make_accept(request), sender.make_accept(request))


@case("answer-reject-open", "closed")
def _answer_reject_open(sender):
    """A Connect Reject without closing the connection."""
    sender.receive_request()
    sender.send(sender.segment(Kind.CONNECT_REJECT, is_error=wire.IS_REJECTED))


@case("answer-no-match-open", "closed")
def _answer_no_match_open(sender):
    """A Connect No Match without closing the connection."""
    sender.receive_request()
    sender.send(sender.segment(Kind.CONNECT_NO_MATCH))


@case("answer-reject-long", "closed")
def _answer_reject_long(sender):
    """A Connect Reject with bytes after its header."""
    sender.receive_request()
    sender.send(sender.segment(Kind.CONNECT_REJECT, bytes(8)))


@case("answer-challenge-bare", "closed")
def _answer_challenge_bare(sender):
    """A challenge without a CE header."""
    sender.receive_request()
    sender.send(sender.segment(
        Kind.CONNECT_REJECT, is_error=wire.IS_CHALLENGE
    ))
