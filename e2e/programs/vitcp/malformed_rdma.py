"""Malformed RDMA messages [VI/TCP 3.2.1, 3.3 in the contents]."""

import select
import socket
from dataclasses import replace

import wire
from common import Failure
from malformed_cases import UNKNOWN_HANDLE, case
from wire import Kind, RdmaHeader


# Fill byte of unwritten memory of vi-peer.
FILL = b"\xa5"
# Sizes of its memory and of the messages.
REGION_BYTES = 128 * 1024
BYTES = 16


def _rdma_case(name, kind, *expected, rd=None, ud=None, address=None,
               handle=None, length=BYTES, payload=bytes(BYTES),
               flags=wire.END, offset=0, beyond=0):
    """Add a case with one RDMA segment; None is as advertised."""
    @case(name, *expected, rd=rd, ud=ud)
    def run(sender):
        sender.connect()
        there, known = sender.region()
        rdma = RdmaHeader(
            there + beyond if address is None else address,
            known if handle is None else handle,
            length,
        )
        sender.send(sender.segment(
            kind, payload, rdma, flags=flags, offset=offset
        ))


def _write_case(name, **changes):
    """Add a case with a refused write [VI/TCP 2.2.2.2.2]."""
    for words, flags in (("write", 0), ("write-immediate", wire.IMMEDIATE)):
        _rdma_case(f"{words}-{name}", Kind.WRITE, "error", rd=("closed",),
                   ud=("open",), flags=wire.END | flags, **changes)


def _read_case(name, **changes):
    """Add a case with a refused read; invalid at Unreliable Delivery."""
    _rdma_case(f"read-{name}", Kind.READ_REQUEST, "refused", ud=("closed",),
               payload=b"", **changes)


for _enter in (_write_case, _read_case):
    _enter("handle-unknown", handle=UNKNOWN_HANDLE)
    _enter("address-unknown", address=8)
    _enter("address-wraps", address=(1 << 64) - 8)
    _enter("over-the-end", beyond=REGION_BYTES - BYTES + 1)
    _enter("before-the-begin", beyond=-1)
    _enter("length-ffffffff", length=0xFFFFFFFF)
_write_case("longer-than-length", length=8)
_write_case("shorter-than-length", length=32)
_rdma_case("write-transmit-error", Kind.WRITE, "error", rd=("closed",),
           ud=("open",), flags=wire.END | wire.TRANSMIT_ERROR)
_rdma_case("write-offset-1", Kind.WRITE, "closed", offset=1)
_rdma_case("read-offset-1", Kind.READ_REQUEST, "closed", payload=b"", offset=1)
_rdma_case("read-without-end", Kind.READ_REQUEST, "closed", payload=b"",
           flags=0)


# Valid messages, as controls.

@case("control-write", "open")
def _control_write(sender):
    """A valid write."""
    sender.connect()
    rdma = RdmaHeader(*sender.region(), BYTES)
    sender.send(sender.segment(Kind.WRITE, bytes(BYTES), rdma))


@case("control-write-to-the-end", "open")
def _control_write_to_the_end(sender):
    """The last bytes of the memory, with Immediate Data."""
    sender.connect()
    there, known = sender.region()
    rdma = RdmaHeader(there + REGION_BYTES - BYTES, known, BYTES)
    sender.send(sender.segment(
        Kind.WRITE, bytes(BYTES), rdma, flags=wire.END | wire.IMMEDIATE
    ))


@case("control-write-in-two", "open")
def _control_write_in_two(sender):
    """A valid write in two segments."""
    sender.connect()
    rdma = RdmaHeader(*sender.region(), 32)
    first = sender.segment(Kind.WRITE, bytes(16), rdma, flags=0)
    sender.send(first, sender.changed(first, flags=wire.END, offset=16))


@case("control-read", "open", ud=("closed",))
def _control_read(sender):
    """A valid read."""
    session = sender.connect()
    if sender.options.level == "ud":
        rdma = RdmaHeader(*sender.region(), BYTES)
        sender.send(sender.segment(Kind.READ_REQUEST, rdma=rdma))
        return
    found = session.read(*sender.region(), BYTES)
    if found != FILL * BYTES:
        raise Failure(f"the RDMA Read gave {found}")


@case("read-too-many", "closed")
def _read_too_many(sender):
    """One RDMA Read more than the read window of the peer [2.2.2.2.6]."""
    session = sender.connect()
    rdma = RdmaHeader(*sender.region(), BYTES)
    sender.send_joined(*(
        sender.segment(Kind.READ_REQUEST, rdma=rdma)
        for _ in range(session.accepted.read_window + 1)
    ))


def _await_unread(sock, count, seconds):
    """Wait until `count` bytes are available, without reading them."""
    raw = getattr(sock, "raw", sock)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
    ready = select.select([raw], [], [], seconds)[0]
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if not ready:
        raise Failure("no response is available")


@case("read-responses-unread", "open", ud=("closed",))
def _read_responses_unread(sender):
    """A full window of RDMA Reads whose responses are read late."""
    session = sender.connect()
    there, known = sender.region()
    rdma = RdmaHeader(there, known, session.connection.mtu)
    count = max(1, session.accepted.read_window)
    for _ in range(count):
        session.connection.reads.append((session.connection.next_number, rdma))
        sender.send(sender.segment(Kind.READ_REQUEST, rdma=rdma))
    if sender.options.level == "ud":
        return
    _await_unread(
        session.sock, session.connection.mtu, sender.options.watch_timeout
    )
    for _ in range(count):
        answer = session.take_answer("a read response")
        if answer.payload != FILL * session.connection.mtu:
            raise Failure("an RDMA Read gave other bytes")


def _changing_case(field, change):
    """Add a case whose second segment has another RDMA header."""
    @case(f"write-changes-{field}", "closed")
    def run(sender):
        sender.connect()
        rdma = RdmaHeader(*sender.region(), 32)
        first = sender.segment(Kind.WRITE, bytes(16), rdma, flags=0)
        second = sender.changed(first, flags=wire.END, offset=16)
        other = replace(rdma, **{field: change(getattr(rdma, field))})
        sender.send(first, replace(second, rdma=other))


_changing_case("address", lambda value: value + 4096)
_changing_case("handle", lambda value: value ^ 1)
_changing_case("length", lambda value: value + 16)


@case("response-unsolicited", "closed")
def _response_unsolicited(sender):
    """A Read Response without a request."""
    session = sender.connect()
    number = wire.after(session.connection.received_number)
    rdma = RdmaHeader(*sender.region(), 16)
    sender.send(sender.segment(
        Kind.READ_RESPONSE, bytes(16), rdma, number=number
    ))
