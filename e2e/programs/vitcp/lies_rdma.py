"""Lies about RDMA [VI/TCP 3.2.1, 3.3 in the contents]."""

import select
import socket
from dataclasses import replace

import wire
from facts import Failure
from lies import NO_HANDLE, lie
from wire import Kind, RdmaHeader


# What a region of the other side is filled with, where nobody wrote.
FILL = b"\xa5"
# Its bytes, and those of the messages here.
REGION_BYTES = 128 * 1024
BYTES = 16


def _rdma_lie(name, kind, *expected, rd=None, ud=None, address=None,
              handle=None, length=BYTES, payload=bytes(BYTES),
              flags=wire.END, offset=0, beyond=0):
    """Enter a lie that is one RDMA segment; None is as advertised."""
    @lie(name, *expected, rd=rd, ud=ud)
    def tell(liar):
        liar.connect()
        there, known = liar.region()
        rdma = RdmaHeader(
            there + beyond if address is None else address,
            known if handle is None else handle,
            length,
        )
        liar.say(liar.segment(
            kind, payload, rdma, flags=flags, offset=offset
        ))


def _write_lie(name, **changes):
    """Enter a write that is refused [VI/TCP 2.2.2.2.2]."""
    for words, flags in (("write", 0), ("write-immediate", wire.IMMEDIATE)):
        _rdma_lie(f"{words}-{name}", Kind.WRITE, "error", rd=("closed",),
                  ud=("kept",), flags=wire.END | flags, **changes)


def _read_lie(name, **changes):
    """Enter a read that is refused; at Unreliable Delivery there is none."""
    _rdma_lie(f"read-{name}", Kind.READ_REQUEST, "refused", ud=("closed",),
              payload=b"", **changes)


for _enter in (_write_lie, _read_lie):
    _enter("handle-unknown", handle=NO_HANDLE)
    _enter("address-unknown", address=8)
    _enter("address-wraps", address=(1 << 64) - 8)
    _enter("over-the-end", beyond=REGION_BYTES - BYTES + 1)
    _enter("before-the-begin", beyond=-1)
    _enter("length-ffffffff", length=0xFFFFFFFF)
_write_lie("longer-than-length", length=8)
_write_lie("shorter-than-length", length=32)
_rdma_lie("write-transmit-error", Kind.WRITE, "error", rd=("closed",),
          ud=("kept",), flags=wire.END | wire.TRANSMIT_ERROR)
_rdma_lie("write-offset-1", Kind.WRITE, "closed", offset=1)
_rdma_lie("read-offset-1", Kind.READ_REQUEST, "closed", payload=b"", offset=1)
_rdma_lie("read-without-end", Kind.READ_REQUEST, "closed", payload=b"",
          flags=0)


# What is no lie, since else any segment might be refused.

@lie("control-write", "kept")
def _control_write(liar):
    """The same write, right."""
    liar.connect()
    rdma = RdmaHeader(*liar.region(), BYTES)
    liar.say(liar.segment(Kind.WRITE, bytes(BYTES), rdma))


@lie("control-write-to-the-end", "kept")
def _control_write_to_the_end(liar):
    """The last bytes that there are, with Immediate Data."""
    liar.connect()
    there, known = liar.region()
    rdma = RdmaHeader(there + REGION_BYTES - BYTES, known, BYTES)
    liar.say(liar.segment(
        Kind.WRITE, bytes(BYTES), rdma, flags=wire.END | wire.IMMEDIATE
    ))


@lie("control-write-in-two", "kept")
def _control_write_in_two(liar):
    """The two segments of write-changes-*, right."""
    liar.connect()
    rdma = RdmaHeader(*liar.region(), 32)
    first = liar.segment(Kind.WRITE, bytes(16), rdma, flags=0)
    liar.say(first, liar.wrong(first, flags=wire.END, offset=16))


@lie("control-read", "kept", ud=("closed",))
def _control_read(liar):
    """The same read, right: it gives the bytes that are there."""
    session = liar.connect()
    if liar.options.level == "ud":
        rdma = RdmaHeader(*liar.region(), BYTES)
        liar.say(liar.segment(Kind.READ_REQUEST, rdma=rdma))
        return
    found = session.read(*liar.region(), BYTES)
    if found != FILL * BYTES:
        raise Failure(f"the RDMA Read gave {found}")


@lie("read-too-many", "closed")
def _read_too_many(liar):
    """One RDMA Read more at once than the other side takes [2.2.2.2.6]."""
    session = liar.connect()
    rdma = RdmaHeader(*liar.region(), BYTES)
    liar.at_once(*(
        liar.segment(Kind.READ_REQUEST, rdma=rdma)
        for _ in range(session.accepted.read_window + 1)
    ))


def _await_unread(sock, count, seconds):
    """Wait until so many bytes are there, and read none of them."""
    raw = getattr(sock, "raw", sock)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
    ready = select.select([raw], [], [], seconds)[0]
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if not ready:
        raise Failure("no answer waits to be read")


@lie("read-unheard", "kept", ud=("closed",))
def _read_unheard(liar):
    """As many RDMA Reads as may be, whose answers wait for their reader."""
    session = liar.connect()
    there, known = liar.region()
    rdma = RdmaHeader(there, known, session.talk.mtu)
    count = max(1, session.accepted.read_window)
    for _ in range(count):
        session.talk.reads.append((session.talk.next_number, rdma))
        liar.say(liar.segment(Kind.READ_REQUEST, rdma=rdma))
    if liar.options.level == "ud":
        return
    _await_unread(session.sock, session.talk.mtu, liar.options.patience)
    for _ in range(count):
        answer = session.take_answer("a read response")
        if answer.payload != FILL * session.talk.mtu:
            raise Failure("an RDMA Read gave other bytes")


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
