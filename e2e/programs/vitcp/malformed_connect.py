"""Malformed Connect Requests, messages out of order [3.2, 4.2, 4.3]."""

from dataclasses import replace

import wire
from malformed_cases import UNKNOWN_ADDRESS, UNKNOWN_HANDLE, case
from wire import Kind, RdmaHeader


def _ce_case(name, *expected, **changes):
    """Add a case with a changed CE header."""
    @case(name, *expected, client_only=True)
    def run(sender):
        sender.start()
        sender.send(sender.make_request(**changes))


_ce_case("calling-length-17", "closed", calling_length=17)
_ce_case("calling-length-65535", "closed", calling_length=0xFFFF)
_ce_case("called-length-17", "closed", called_length=17)
_ce_case("called-length-65535", "closed", called_length=0xFFFF)
_ce_case("called-length-0", "no-match", called=b"")
_ce_case("called-unknown", "no-match", called=b"not in use")
_ce_case("mtu-0", "reject", mtu=0)
_ce_case("mtu-1", "reject", mtu=1)
_ce_case("mtu-ffffffff", "reject", mtu=0xFFFFFFFF)
_ce_case("read-window-65535", "accept", read_window=0xFFFF)
_ce_case("security-257", "closed", security=bytes(257))
_ce_case("security-65000", "closed", security=bytes(65000))


def _attribute_case(name, *expected, ud=None, add=0, remove=0):
    """Add a case with changed Calling Attributes."""
    @case(name, *expected, ud=ud, client_only=True)
    def run(sender):
        sender.start()
        request = sender.make_request()
        attributes = request.ce.attributes & ~remove | add
        ce = replace(request.ce, attributes=attributes)
        sender.send(replace(request, ce=ce))


for _bit in range(8, 16):
    _attribute_case(f"attribute-bit-{_bit}", "accept", add=1 << _bit)
_attribute_case("level-3", "accept", add=wire.LEVEL_MASK)
_attribute_case("level-without-reliable", "reject", ud=("accept",),
                add=1 << wire.LEVEL_SHIFT, remove=wire.RELIABLE)


@case("calling-padding", "accept", client_only=True)
def _calling_padding(sender):
    """The Calling Discriminator has bytes after its length."""
    sender.start()
    calling = sender.options.calling
    sender.send(sender.make_request(
        calling=(calling + b"\xff" * 16)[:16], calling_length=len(calling)
    ))


@case("called-padding", "accept", client_only=True)
def _called_padding(sender):
    """The Called Discriminator has bytes after its length."""
    sender.start()
    called = sender.options.called
    sender.send(sender.make_request(
        called=(called + b"\xff" * 16)[:16], called_length=len(called)
    ))


def _request_case(name, *expected, **changes):
    """Add a case with a changed segment header of a Connect Request."""
    @case(name, *expected, client_only=True)
    def run(sender):
        sender.start()
        sender.send(sender.changed(sender.make_request(), **changes))


_request_case("connect-version-0", "closed", version=0)
_request_case("connect-version-2", "closed", version=2)
_request_case("connect-type-9", "closed", kind=9)
_request_case("connect-type-31", "closed", kind=31)
_request_case("connect-length-23", "closed", length=23)
_request_case("connect-length-24", "closed", length=24)
_request_case("connect-length-67", "closed", length=67)
_request_case("connect-length-325", "closed", length=325)
_request_case("connect-without-end", "closed", flags=0)
_request_case("connect-offset-1", "closed", offset=1)
_request_case("connect-immediate", "accept", flags=wire.END | wire.IMMEDIATE)
_request_case("connect-transmit-error", "accept",
              flags=wire.END | wire.TRANSMIT_ERROR)
_request_case("connect-vi-error-1", "accept", vi_error=1)
_request_case("connect-is-error-16", "accept", is_error=16)
_request_case("connect-is-error-255", "accept", is_error=255)


# Messages in a wrong state [VI/TCP 4.2, 4.3]

_WRONG_STATE = (
    Kind.SEND, Kind.NOP, Kind.WRITE, Kind.READ_REQUEST, Kind.READ_RESPONSE,
    Kind.CONNECT_ACCEPT, Kind.CONNECT_REJECT, Kind.CONNECT_NO_MATCH,
)


def _any_message(sender, kind):
    """Make a message of the given type that is valid by itself."""
    rdma = ce = None
    if kind in wire.RDMA_KINDS:
        rdma = RdmaHeader(UNKNOWN_ADDRESS, UNKNOWN_HANDLE, 0)
    if kind in (Kind.CONNECT_REQUEST, Kind.CONNECT_ACCEPT):
        ce = sender.session.parameters.ce()
    return sender.segment(kind, rdma=rdma, ce=ce)


def _before_case(kind):
    @case(f"before-connect-{wire.kind_name(kind)}", "closed", client_only=True)
    def run(sender):
        sender.start()
        sender.send(_any_message(sender, kind))


for _kind in _WRONG_STATE:
    _before_case(_kind)


def _connected_case(kind):
    @case(f"connected-{wire.kind_name(kind)}", "closed")
    def run(sender):
        sender.connect()
        sender.send(_any_message(sender, kind))


for _kind in wire.CONNECTION_KINDS:
    _connected_case(_kind)


@case("request-twice", "closed", client_only=True)
def _request_twice(sender):
    """A second Connect Request without waiting for the answer."""
    sender.start()
    sender.send_joined(sender.make_request(), sender.make_request())


@case("send-before-accept", "closed", client_only=True)
def _send_before_accept(sender):
    """A Send directly after the Connect Request."""
    sender.start()
    sender.send_joined(
        sender.make_request(), sender.segment(Kind.SEND, b"early")
    )
