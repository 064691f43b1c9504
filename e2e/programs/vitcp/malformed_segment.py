"""Malformed segments on a connection: header, numbers, ACK [3.1]."""

import wire
from malformed_cases import UNKNOWN_ADDRESS, UNKNOWN_HANDLE, case
from wire import Kind, RdmaHeader


def _header_case(name, *expected, kind=Kind.NOP, rd=None, ud=None,
                 payload=b"", **changes):
    """Add a case with one changed segment on a connection."""
    @case(name, *expected, rd=rd, ud=ud)
    def run(sender):
        sender.connect()
        sender.send(sender.changed(sender.segment(kind, payload), **changes))


for _version in (0, 2, 255):
    _header_case(f"version-{_version}", "closed", version=_version)
for _kind in range(9, 32):
    _header_case(f"type-{_kind}", "closed", kind=_kind)

_header_case("length-0", "closed", length=0)
_header_case("length-23", "closed", length=23)
_header_case("nop-length-25", "closed", payload=b"x")
_header_case("nop-length-65535", "closed", payload=bytes(65511))
_header_case("nop-without-end", "closed", flags=0)
_header_case("nop-immediate", "open", flags=wire.END | wire.IMMEDIATE)
_header_case("nop-transmit-error", "open",
             flags=wire.END | wire.TRANSMIT_ERROR)
_header_case("nop-offset-1", "closed", offset=1)
_header_case("send-offset-1", "closed", kind=Kind.SEND, payload=b"12345678",
             offset=1)
_header_case("send-offset-ffffffff", "closed", kind=Kind.SEND, payload=b"1234",
             offset=0xFFFFFFFF)
_header_case("write-length-24", "closed", kind=Kind.WRITE)
_header_case("write-length-39", "closed", kind=Kind.WRITE, payload=bytes(15))
_header_case("read-request-length-24", "closed", kind=Kind.READ_REQUEST)
_header_case("read-request-payload", "closed", kind=Kind.READ_REQUEST,
             payload=(RdmaHeader(UNKNOWN_ADDRESS, UNKNOWN_HANDLE, 8).pack()
                      + bytes(8)))
for _error in (1, 2, 3, 255):
    _header_case(f"vi-error-{_error}", "closed", rd=("open",), ud=("open",),
                 vi_error=_error)
_header_case("is-error-1", "closed", rd=("open",), ud=("open",), is_error=1)
for _error in (2, 16, 255):
    _header_case(f"is-error-{_error}", "open", is_error=_error)


@case("number-skipped", "closed")
def _number_skipped(sender):
    """One number is skipped [VI/TCP 3.1]."""
    sender.connect()
    segment = sender.segment(Kind.SEND, b"skipped")
    number = wire.after(segment.header.number)
    sender.send(sender.changed(segment, number=number))


@case("number-repeated", "closed")
def _number_repeated(sender):
    """The number of a complete message is repeated."""
    sender.connect()
    segment = sender.segment(Kind.NOP)
    sender.send(segment, segment)


@case("number-repeated-send", "closed")
def _number_repeated_send(sender):
    """A complete Send is repeated."""
    sender.connect()
    segment = sender.segment(Kind.SEND, b"repeated")
    sender.send(segment, segment)


@case("number-unknown", "closed")
def _number_unknown(sender):
    """A number far from the last one."""
    sender.connect()
    segment = sender.segment(Kind.SEND, b"unknown")
    number = wire.after(segment.header.number, 0x80000000)
    sender.send(sender.changed(segment, number=number))


@case("offset-gap", "closed")
def _offset_gap(sender):
    """The second segment skips bytes."""
    sender.connect()
    first = sender.segment(Kind.SEND, bytes(16), flags=0)
    second = sender.changed(first, flags=wire.END, offset=17)
    sender.send(first, second)


@case("offset-repeated", "closed")
def _offset_repeated(sender):
    """The second segment has the offset of the first."""
    sender.connect()
    first = sender.segment(Kind.SEND, bytes(16), flags=0)
    sender.send(first, sender.changed(first, flags=wire.END))


@case("ack-never-sent", "closed", rd=("open",), ud=("open",))
def _ack_never_sent(sender):
    """Message ACK of a number far ahead; ignored except at RR."""
    session = sender.connect()
    ack = wire.after(session.connection.received_number, 0x40000000)
    sender.send(sender.segment(Kind.NOP, ack=ack))


@case("ack-one-ahead", "closed", rd=("open",), ud=("open",))
def _ack_one_ahead(sender):
    """Message ACK of a number slightly ahead, not sent either."""
    session = sender.connect()
    ack = wire.after(session.connection.received_number, 16)
    sender.send(sender.segment(Kind.NOP, ack=ack))


@case("ack-next", "closed", rd=("open",), ud=("open",))
def _ack_next(sender):
    """Message ACK of the next message, not sent yet."""
    session = sender.connect()
    ack = wire.after(session.connection.received_number)
    sender.send(sender.segment(Kind.NOP, ack=ack))


@case("ack-backwards", "open")
def _ack_backwards(sender):
    """Message ACK of the message before the last one."""
    session = sender.connect()
    ack = wire.after(session.connection.received_number, -1)
    sender.send(sender.segment(Kind.NOP, ack=ack))


def _posted_case(name, by):
    """Add a case with another Rx Descriptors Posted, modulo 2^16."""
    @case(f"posted-{name}", "open")
    def run(sender):
        session = sender.connect()
        posted = (session.connection.posted + by) % 0x10000
        sender.send(sender.segment(Kind.NOP, posted=posted))


_posted_case("backwards", -1)
_posted_case("far-ahead", 0x7FFF)
_posted_case("further-ahead", 0x8000)


@case("error-of-unknown-message", "closed", rd=("open",), ud=("open",))
def _error_of_unknown(sender):
    """A VI error of a message that was never sent."""
    session = sender.connect()
    ack = wire.after(session.connection.received_number, 0x40000000)
    sender.send(sender.segment(
        Kind.NOP, ack=ack, vi_error=wire.DESCRIPTOR_ERROR
    ))


@case("transmit-error", "error", rd=("closed",), ud=("open",))
def _transmit_error(sender):
    """A Send with Transmit Error [VI/TCP 2.2.2.2.5]."""
    sender.connect()
    flags = wire.END | wire.TRANSMIT_ERROR
    sender.send(sender.segment(Kind.SEND, b"padded", flags=flags))


def _read_request_case(name, flags):
    """Add a case with a flag without a meaning in Read Requests."""
    @case(name, "response", ud=("closed",))
    def run(sender):
        sender.connect()
        rdma = RdmaHeader(*sender.region(), 16)
        sender.send(sender.segment(
            Kind.READ_REQUEST, rdma=rdma, flags=wire.END | flags
        ))


_read_request_case("read-request-immediate", wire.IMMEDIATE)
_read_request_case("read-request-transmit-error", wire.TRANSMIT_ERROR)
