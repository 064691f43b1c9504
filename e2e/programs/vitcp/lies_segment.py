"""Lies about one segment on a connection: header, numbers, ACK [3.1]."""

import wire
from lies import NOWHERE, NO_HANDLE, lie
from wire import Kind, RdmaHeader


def _header_lie(name, *expected, kind=Kind.NOP, rd=None, ud=None,
                payload=b"", **changes):
    """Enter a lie that is one changed segment on a connection."""
    @lie(name, *expected, rd=rd, ud=ud)
    def tell(liar):
        liar.connect()
        liar.say(liar.wrong(liar.segment(kind, payload), **changes))


for _version in (0, 2, 255):
    _header_lie(f"version-{_version}", "closed", version=_version)
for _kind in range(9, 32):
    _header_lie(f"type-{_kind}", "closed", kind=_kind)

_header_lie("length-0", "closed", length=0)
_header_lie("length-23", "closed", length=23)
_header_lie("nop-length-25", "closed", payload=b"x")
_header_lie("nop-length-65535", "closed", payload=bytes(65511))
_header_lie("nop-without-end", "closed", flags=0)
_header_lie("nop-immediate", "kept", flags=wire.END | wire.IMMEDIATE)
_header_lie("nop-transmit-error", "kept", flags=wire.END | wire.TRANSMIT_ERROR)
_header_lie("nop-offset-1", "closed", offset=1)
_header_lie("send-offset-1", "closed", kind=Kind.SEND, payload=b"12345678",
            offset=1)
_header_lie("send-offset-ffffffff", "closed", kind=Kind.SEND, payload=b"1234",
            offset=0xFFFFFFFF)
_header_lie("write-length-24", "closed", kind=Kind.WRITE)
_header_lie("write-length-39", "closed", kind=Kind.WRITE, payload=bytes(15))
_header_lie("read-request-length-24", "closed", kind=Kind.READ_REQUEST)
_header_lie("read-request-payload", "closed", kind=Kind.READ_REQUEST,
            payload=RdmaHeader(NOWHERE, NO_HANDLE, 8).pack() + bytes(8))
for _error in (1, 2, 3, 255):
    _header_lie(f"vi-error-{_error}", "closed", rd=("kept",), ud=("kept",),
                vi_error=_error)
_header_lie("is-error-1", "closed", rd=("kept",), ud=("kept",), is_error=1)
for _error in (2, 16, 255):
    _header_lie(f"is-error-{_error}", "kept", is_error=_error)


@lie("number-skipped", "closed")
def _number_skipped(liar):
    """One number is left out [VI/TCP 3.1]."""
    liar.connect()
    segment = liar.segment(Kind.SEND, b"skipped")
    number = wire.after(segment.header.number)
    liar.say(liar.wrong(segment, number=number))


@lie("number-repeated", "closed")
def _number_repeated(liar):
    """A finished message has its number again."""
    liar.connect()
    segment = liar.segment(Kind.NOP)
    liar.say(segment, segment)


@lie("number-repeated-send", "closed")
def _number_repeated_send(liar):
    """A finished Send comes again as it was."""
    liar.connect()
    segment = liar.segment(Kind.SEND, b"repeated")
    liar.say(segment, segment)


@lie("number-unknown", "closed")
def _number_unknown(liar):
    """A number far away from the last."""
    liar.connect()
    segment = liar.segment(Kind.SEND, b"unknown")
    number = wire.after(segment.header.number, 0x80000000)
    liar.say(liar.wrong(segment, number=number))


@lie("offset-gap", "closed")
def _offset_gap(liar):
    """The second segment leaves bytes out."""
    liar.connect()
    first = liar.segment(Kind.SEND, bytes(16), flags=0)
    second = liar.wrong(first, flags=wire.END, offset=17)
    liar.say(first, second)


@lie("offset-repeated", "closed")
def _offset_repeated(liar):
    """The second segment says that it is the first."""
    liar.connect()
    first = liar.segment(Kind.SEND, bytes(16), flags=0)
    liar.say(first, liar.wrong(first, flags=wire.END))


@lie("ack-never-sent", "closed", rd=("kept",), ud=("kept",))
def _ack_never_sent(liar):
    """Message ACK of a number that is far ahead; ignored but at RR."""
    session = liar.connect()
    ack = wire.after(session.talk.heard, 0x40000000)
    liar.say(liar.segment(Kind.NOP, ack=ack))


@lie("ack-one-ahead", "closed", rd=("kept",), ud=("kept",))
def _ack_one_ahead(liar):
    """Message ACK of a message far nearer, but not sent either."""
    session = liar.connect()
    liar.say(liar.segment(Kind.NOP, ack=wire.after(session.talk.heard, 16)))


@lie("ack-next", "closed", rd=("kept",), ud=("kept",))
def _ack_next(liar):
    """Message ACK of the next message, which is not sent yet."""
    session = liar.connect()
    liar.say(liar.segment(Kind.NOP, ack=wire.after(session.talk.heard)))


@lie("ack-backwards", "kept")
def _ack_backwards(liar):
    """Message ACK of the message before the last; that is known already."""
    session = liar.connect()
    liar.say(liar.segment(Kind.NOP, ack=wire.after(session.talk.heard, -1)))


def _posted_lie(name, by):
    """Enter a lie about Rx Descriptors Posted, which counts modulo 2^16."""
    @lie(f"posted-{name}", "kept")
    def tell(liar):
        session = liar.connect()
        posted = (session.talk.posted + by) % 0x10000
        liar.say(liar.segment(Kind.NOP, posted=posted))


_posted_lie("backwards", -1)
_posted_lie("far-ahead", 0x7FFF)
_posted_lie("further-ahead", 0x8000)


@lie("error-of-unknown-message", "closed", rd=("kept",), ud=("kept",))
def _error_of_unknown(liar):
    """A VI error of a message that was never sent."""
    session = liar.connect()
    ack = wire.after(session.talk.heard, 0x40000000)
    liar.say(liar.segment(Kind.NOP, ack=ack, vi_error=wire.DESCRIPTOR_ERROR))


@lie("transmit-error", "error", rd=("closed",), ud=("kept",))
def _transmit_error(liar):
    """A Send with Transmit Error [VI/TCP 2.2.2.2.5]."""
    liar.connect()
    flags = wire.END | wire.TRANSMIT_ERROR
    liar.say(liar.segment(Kind.SEND, b"padded", flags=flags))


def _read_request_lie(name, flags):
    """Enter a Read Request with a flag that says nothing there."""
    @lie(name, "response", ud=("closed",))
    def tell(liar):
        liar.connect()
        rdma = RdmaHeader(*liar.region(), 16)
        liar.say(liar.segment(
            Kind.READ_REQUEST, rdma=rdma, flags=wire.END | flags
        ))


_read_request_lie("read-request-immediate", wire.IMMEDIATE)
_read_request_lie("read-request-transmit-error", wire.TRANSMIT_ERROR)
