"""Lies about whole messages: length, credits, order [VI/TCP 2.2.2.2.3]."""

import wire
from lies import lie
from session import Failure
from wire import Kind, RdmaHeader


def _send_bytes(liar, total):
    """Say a Send of `total` bytes, right but for its length."""
    number = None
    offset = 0
    while offset < total:
        part = min(liar.options.segment, total - offset)
        flags = wire.END if offset + part == total else 0
        fields = {} if number is None else {"number": number}
        segment = liar.segment(
            Kind.SEND, bytes(part), flags=flags, offset=offset, **fields
        )
        number = segment.header.number
        try:
            liar.say(segment)
        except Failure:
            return  # closed already
        offset += part


@lie("send-longer-than-mtu", "closed", ud=("closed", "kept"))
def _send_longer_than_mtu(liar):
    """One byte more than the agreed MTU Size [VI/TCP 3.2]."""
    session = liar.connect()
    _send_bytes(liar, session.talk.mtu + 1)


@lie("send-longer-than-descriptor", "error", rd=("closed",), ud=("kept",),
     apart=True)
def _send_longer_than_descriptor(liar):
    """--bytes bytes (MTU Size if not given), the receives being shorter."""
    session = liar.connect()
    _send_bytes(liar, liar.options.bytes or session.talk.mtu)


@lie("send-without-credit", "closed", ud=("closed", "kept"))
def _send_without_credit(liar):
    """More Sends at once than Rx Descriptors Posted allows [VI/TCP 3.1]."""
    session = liar.connect()
    try:
        for _ in range(session.talk.credits + 1 + liar.options.extra):
            liar.say(liar.segment(Kind.SEND, b"one too many"))
    except Failure:
        pass  # closed already


def _interleave_lie(name, kind, payload=b""):
    """Enter a lie that is a message inside of a Send [2.2.2.2.3]."""
    @lie(name, "closed")
    def tell(liar):
        liar.connect()
        rdma = None
        if kind in wire.RDMA_KINDS:
            rdma = RdmaHeader(*liar.region(), len(payload))
        first = liar.segment(Kind.SEND, bytes(16), flags=0)
        liar.say(first, liar.segment(kind, payload, rdma))


_interleave_lie("interleave-send", Kind.SEND, b"another")
_interleave_lie("interleave-write", Kind.WRITE, b"another")
_interleave_lie("interleave-read-request", Kind.READ_REQUEST)
_interleave_lie("interleave-nop", Kind.NOP)


@lie("interleave-type", "closed")
def _interleave_type(liar):
    """The second segment of a Send is a NOP with the same number."""
    liar.connect()
    first = liar.segment(Kind.SEND, bytes(16), flags=0)
    liar.say(first, liar.segment(Kind.NOP, number=first.header.number))


@lie("endless-empty-segments", "closed", "kept")
def _endless_empty(liar):
    """Thousands of segments of one Send, all without payload."""
    liar.connect()
    first = liar.segment(Kind.SEND, flags=0).pack()
    try:
        for _ in range(100):
            liar.say(first * 100)
    except Failure:
        pass  # closed already
