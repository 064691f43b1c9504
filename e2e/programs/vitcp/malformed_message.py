"""Malformed messages: length, credits, order [VI/TCP 2.2.2.2.3]."""

import wire
from common import Failure
from malformed_cases import case
from wire import Kind, RdmaHeader


def _send_bytes(sender, total):
    """Send a Send of `total` bytes."""
    number = None
    offset = 0
    while offset < total:
        part = min(sender.options.segment, total - offset)
        flags = wire.END if offset + part == total else 0
        fields = {} if number is None else {"number": number}
        segment = sender.segment(
            Kind.SEND, bytes(part), flags=flags, offset=offset, **fields
        )
        number = segment.header.number
        try:
            sender.send(segment)
        except Failure:
            return  # closed already
        offset += part


@case("send-longer-than-mtu", "error", rd=("closed",), ud=("open",))
def _send_longer_than_mtu(sender):
    """One byte more than the negotiated MTU Size [VI/TCP 3.2]."""
    session = sender.connect()
    _send_bytes(sender, session.connection.mtu + 1)


@case("control-send-of-mtu", "open")
def _control_send_of_mtu(sender):
    """A valid message of maximum length."""
    session = sender.connect()
    _send_bytes(sender, session.connection.mtu)


@case("send-without-credit", "error", rd=("closed",), ud=("open",),
      silent=True)
def _send_without_credit(sender):
    """One Send more than Rx Descriptors Posted allows [VI/TCP 3.1]."""
    session = sender.connect()
    # In one piece, so that the peer cannot repost receives in time.
    sender.send_joined(*(
        sender.segment(Kind.SEND, b"too many")
        for _ in range(session.connection.credits + 1)
    ))


def _interleave_case(name, kind, payload=b""):
    """Add a case with a message inside of a Send [2.2.2.2.3]."""
    @case(name, "closed")
    def run(sender):
        sender.connect()
        rdma = None
        if kind in wire.RDMA_KINDS:
            rdma = RdmaHeader(*sender.region(), len(payload))
        first = sender.segment(Kind.SEND, bytes(16), flags=0)
        sender.send(first, sender.segment(kind, payload, rdma))


_interleave_case("interleave-send", Kind.SEND, b"another")
_interleave_case("interleave-write", Kind.WRITE, b"another")
_interleave_case("interleave-read-request", Kind.READ_REQUEST)
_interleave_case("interleave-nop", Kind.NOP)


@case("interleave-type", "closed")
def _interleave_type(sender):
    """The second segment of a Send is a NOP with the same number."""
    sender.connect()
    first = sender.segment(Kind.SEND, bytes(16), flags=0)
    sender.send(first, sender.segment(Kind.NOP, number=first.header.number))


@case("endless-empty-segments", "open")
def _endless_empty(sender):
    """Thousands of segments of one Send without payload, then its end."""
    sender.connect()
    first = sender.segment(Kind.SEND, flags=0)
    for _ in range(3000):
        sender.send(first)
    sender.send(sender.changed(first, flags=wire.END))
