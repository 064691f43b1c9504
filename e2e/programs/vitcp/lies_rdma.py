"""Lies about RDMA [VI/TCP 3.2.1, 3.3 in the contents]."""

from dataclasses import replace

import wire
from lies import NO_HANDLE, Untold, lie
from session import Failure
from wire import Kind, RdmaHeader


def _rdma_lie(name, kind, *expected, rd=None, ud=None, address=None,
              handle=None, length=16, payload=bytes(16), flags=wire.END):
    """Enter a lie that is one RDMA segment; None is as advertised."""
    @lie(name, *expected, rd=rd, ud=ud)
    def tell(liar):
        liar.connect()
        there, known = liar.region()
        rdma = RdmaHeader(
            there if address is None else address,
            known if handle is None else handle,
            length,
        )
        liar.say(liar.segment(kind, payload, rdma, flags=flags))


_rdma_lie("write-handle-unknown", Kind.WRITE, "error", rd=("closed",),
          ud=("kept",), handle=NO_HANDLE)
_rdma_lie("write-address-unknown", Kind.WRITE, "error", rd=("closed",),
          ud=("kept",), address=8)
_rdma_lie("write-address-wraps", Kind.WRITE, "closed",
          ud=("kept", "closed"), address=(1 << 64) - 8)
_rdma_lie("write-length-ffffffff", Kind.WRITE, "closed",
          ud=("kept", "closed"), length=0xFFFFFFFF, flags=0)
_rdma_lie("write-longer-than-length", Kind.WRITE, "closed",
          length=8)
_rdma_lie("write-shorter-than-length", Kind.WRITE, "closed",
          length=32)
_READ_REFUSED = ("refused", "error", "closed")
_rdma_lie("read-handle-unknown", Kind.READ_REQUEST, "refused", "error",
          rd=("refused",), ud=("refused",), handle=NO_HANDLE, payload=b"")
_rdma_lie("read-address-unknown", Kind.READ_REQUEST, "refused", "error",
          rd=("refused",), ud=("refused",), address=8, payload=b"")
_rdma_lie("read-address-wraps", Kind.READ_REQUEST, *_READ_REFUSED,
          address=(1 << 64) - 8, payload=b"")
_rdma_lie("read-length-ffffffff", Kind.READ_REQUEST, *_READ_REFUSED,
          length=0xFFFFFFFF, payload=b"")
_rdma_lie("read-without-end", Kind.READ_REQUEST, *_READ_REFUSED,
          payload=b"", flags=0)


def _changing_lie(field, change):
    """Enter a lie whose second segment has another RDMA header."""
    @lie(f"write-changes-{field}", "closed")
    def tell(liar):
        liar.connect()
        rdma = RdmaHeader(*liar.region(), 32)
        first = liar.segment(Kind.WRITE, bytes(16), rdma, flags=0)
        second = liar.wrong(first, flags=wire.END, offset=16)
        other = replace(rdma, **{field: change(getattr(rdma, field))})
        liar.say(first, replace(second, rdma=other))


_changing_lie("address", lambda value: value + 4096)
_changing_lie("handle", lambda value: value ^ 1)
_changing_lie("length", lambda value: value + 16)


@lie("response-unasked", "closed")
def _response_unasked(liar):
    """A Read Response that nobody asked for."""
    session = liar.connect()
    number = wire.after(session.talk.heard)
    rdma = RdmaHeader(*liar.region(), 16)
    liar.say(liar.segment(
        Kind.READ_RESPONSE, bytes(16), rdma, number=number
    ))


def _await_request(liar):
    """Return a Read Request of the other side, or raise Untold."""
    session = liar.connect()
    asked = []
    session.respond = asked.append
    try:
        session.wait_for(lambda: asked, liar.options.patience, "a read")
    except Failure as failure:
        raise Untold(f"({failure})") from None
    return asked[0]


def _response_lie(name, payload, **changes):
    """Enter a lie about an RDMA Read of the other side."""
    @lie(name, "closed", apart=True)
    def tell(liar):
        message = _await_request(liar)
        rdma = message.rdma
        data = bytes(max(0, rdma.length + payload))
        for field, change in changes.items():
            rdma = replace(rdma, **{field: getattr(rdma, field) ^ change})
        liar.say(liar.segment(
            Kind.READ_RESPONSE, data, rdma, number=message.number
        ))


_response_lie("response-longer", 1)
_response_lie("response-shorter", -1)
_response_lie("response-other-address", 0, address=4096)
_response_lie("response-other-handle", 0, handle=1)


@lie("response-other-number", "closed", apart=True)
def _response_other_number(liar):
    """A Read Response with a number that no request has."""
    message = _await_request(liar)
    liar.say(liar.segment(
        Kind.READ_RESPONSE, bytes(message.rdma.length), message.rdma,
        number=wire.after(message.number, 1000),
    ))
