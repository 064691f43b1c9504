"""Lies about whole messages: length, credits, order [VI/TCP 2.2.2.2.3]."""

import wire
from facts import Failure
from lies import lie
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


@lie("send-longer-than-mtu", "error", rd=("closed",), ud=("kept",))
def _send_longer_than_mtu(liar):
    """One byte more than the agreed MTU Size [VI/TCP 3.2]."""
    session = liar.connect()
    _send_bytes(liar, session.talk.mtu + 1)


@lie("control-send-of-mtu", "kept")
def _control_send_of_mtu(liar):
    """No lie: as long as a message may be."""
    session = liar.connect()
    _send_bytes(liar, session.talk.mtu)


@lie("send-longer-than-descriptor", "error", rd=("closed",), ud=("kept",),
     apart=True)
def _send_longer_than_descriptor(liar):
    """--bytes bytes (MTU Size if not given), the receives being shorter."""
    session = liar.connect()
    _send_bytes(liar, liar.options.bytes or session.talk.mtu)


def _too_many(liar):
    """Say one Send more than Rx Descriptors Posted allows [VI/TCP 3.1]."""
    session = liar.connect()
    # All at once: who posts for each that comes is not quick enough.
    liar.at_once(*(
        liar.segment(Kind.SEND, b"too many")
        for _ in range(session.talk.credits + 1 + liar.options.extra)
    ))


@lie("send-without-credit", "error", rd=("closed",), ud=("kept",),
     mute=True)
def _send_without_credit(liar):
    """More Sends than there are receives."""
    _too_many(liar)


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


@lie("endless-empty-segments", "kept")
def _endless_empty(liar):
    """Thousands of segments of one Send without payload; it ends at last."""
    liar.connect()
    first = liar.segment(Kind.SEND, flags=0)
    for _ in range(3000):
        liar.say(first)
    liar.say(liar.wrong(first, flags=wire.END))
