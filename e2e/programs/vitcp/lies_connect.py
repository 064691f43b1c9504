"""Lies about Connect Requests, and messages out of place [3.2, 4.2, 4.3]."""

from dataclasses import replace

import wire
from lies import NOWHERE, NO_HANDLE, lie
from wire import Kind, RdmaHeader


def _ce_lie(name, *expected, **changes):
    """Enter a lie that is one changed CE header."""
    @lie(name, *expected, asks=True)
    def tell(liar):
        liar.start()
        liar.say(liar.request(**changes))


_ce_lie("calling-length-17", "closed", calling_length=17)
_ce_lie("calling-length-65535", "closed", calling_length=0xFFFF)
_ce_lie("called-length-17", "closed", called_length=17)
_ce_lie("called-length-65535", "closed", called_length=0xFFFF)
_ce_lie("called-length-0", "no-match", called=b"")
_ce_lie("called-unknown", "no-match", called=b"nobody at all")
_ce_lie("mtu-0", "reject", mtu=0)
_ce_lie("mtu-1", "reject", mtu=1)
_ce_lie("mtu-ffffffff", "reject", mtu=0xFFFFFFFF)
_ce_lie("read-window-65535", "accept", read_window=0xFFFF)
_ce_lie("security-257", "closed", security=bytes(257))
_ce_lie("security-65000", "closed", security=bytes(65000))


def _attribute_lie(name, *expected, ud=None, add=0, remove=0):
    """Enter a lie that is changed Calling Attributes."""
    @lie(name, *expected, ud=ud, asks=True)
    def tell(liar):
        liar.start()
        request = liar.request()
        attributes = request.ce.attributes & ~remove | add
        ce = replace(request.ce, attributes=attributes)
        liar.say(replace(request, ce=ce))


for _bit in range(8, 16):
    _attribute_lie(f"attribute-bit-{_bit}", "accept", add=1 << _bit)
_attribute_lie("level-3", "accept", add=wire.LEVEL_MASK)
_attribute_lie("level-without-reliable", "reject", ud=("accept",),
               add=1 << wire.LEVEL_SHIFT, remove=wire.RELIABLE)


@lie("calling-padding", "accept", asks=True)
def _calling_padding(liar):
    """The Calling Discriminator has bytes behind its length."""
    liar.start()
    calling = liar.options.calling
    liar.say(liar.request(
        calling=(calling + b"\xff" * 16)[:16], calling_length=len(calling)
    ))


@lie("called-padding", "accept", asks=True)
def _called_padding(liar):
    """The Called Discriminator has bytes behind its length."""
    liar.start()
    called = liar.options.called
    liar.say(liar.request(
        called=(called + b"\xff" * 16)[:16], called_length=len(called)
    ))


def _request_lie(name, *expected, **changes):
    """Enter a lie that is a changed segment header of a Connect Request."""
    @lie(name, *expected, asks=True)
    def tell(liar):
        liar.start()
        liar.say(liar.wrong(liar.request(), **changes))


_request_lie("connect-version-0", "closed", version=0)
_request_lie("connect-version-2", "closed", version=2)
_request_lie("connect-type-9", "closed", kind=9)
_request_lie("connect-type-31", "closed", kind=31)
_request_lie("connect-length-23", "closed", length=23)
_request_lie("connect-length-24", "closed", length=24)
_request_lie("connect-length-67", "closed", length=67)
_request_lie("connect-length-325", "closed", length=325)
_request_lie("connect-without-end", "closed", flags=0)
_request_lie("connect-offset-1", "closed", offset=1)
_request_lie("connect-immediate", "accept", flags=wire.END | wire.IMMEDIATE)
_request_lie("connect-transmit-error", "accept",
             flags=wire.END | wire.TRANSMIT_ERROR)
_request_lie("connect-vi-error-1", "accept", vi_error=1)
_request_lie("connect-is-error-16", "accept", is_error=16)
_request_lie("connect-is-error-255", "accept", is_error=255)


# Messages where they have no place [VI/TCP 4.2, 4.3]

_OUT_OF_PLACE = (
    Kind.SEND, Kind.NOP, Kind.WRITE, Kind.READ_REQUEST, Kind.READ_RESPONSE,
    Kind.CONNECT_ACCEPT, Kind.CONNECT_REJECT, Kind.CONNECT_NO_MATCH,
)


def _any_message(liar, kind):
    """Make a message of the given type that is right in itself."""
    rdma = ce = None
    if kind in wire.RDMA_KINDS:
        rdma = RdmaHeader(NOWHERE, NO_HANDLE, 0)
    if kind in (Kind.CONNECT_REQUEST, Kind.CONNECT_ACCEPT):
        ce = liar.session.hello.ce()
    return liar.segment(kind, rdma=rdma, ce=ce)


def _before_lie(kind):
    @lie(f"before-connect-{wire.kind_name(kind)}", "closed", asks=True)
    def tell(liar):
        liar.start()
        liar.say(_any_message(liar, kind))


for _kind in _OUT_OF_PLACE:
    _before_lie(_kind)


def _connected_lie(kind):
    @lie(f"connected-{wire.kind_name(kind)}", "closed")
    def tell(liar):
        liar.connect()
        liar.say(_any_message(liar, kind))


for _kind in wire.CONNECTION_KINDS:
    _connected_lie(_kind)


@lie("request-twice", "closed", asks=True)
def _request_twice(liar):
    """A second Connect Request without waiting for the answer."""
    liar.start()
    liar.at_once(liar.request(), liar.request())


@lie("send-before-accept", "closed", asks=True)
def _send_before_accept(liar):
    """A Send right behind the Connect Request."""
    liar.start()
    liar.at_once(liar.request(), liar.segment(Kind.SEND, b"early"))
