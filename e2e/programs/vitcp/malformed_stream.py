"""Malformed TCP streams: garbage, slow senders, closes, floods."""

import socket
import struct
import time

import wire
from malformed_cases import garbage, case
from session import ConnectParameters
from wire import Kind, Segment


@case("segment-never-sent", "open", silent=True)
def _segment_never_sent(sender):
    """The header of a Send of 65535 bytes without its payload."""
    sender.connect()
    segment = sender.segment(Kind.SEND, flags=0, length=wire.MAX_SEGMENT)
    sender.send(segment)


@case("request-never-sent", "closed", by_name_only=True, client_only=True)
def _request_never_sent(sender):
    """A TCP connection without a request [VI/TCP 4.3]."""
    sender.start()


@case("garbage-instead", "closed", client_only=True)
def _garbage_instead(sender):
    """Random bytes instead of a Connect Request."""
    sender.start()
    sender.send(garbage(sender))


@case("garbage-connected", "closed")
def _garbage_connected(sender):
    """Random bytes instead of a message."""
    sender.connect()
    sender.send(garbage(sender))


@case("garbage-after-nop", "closed")
def _garbage_after_nop(sender):
    """Random bytes directly after a NOP."""
    sender.connect()
    sender.send(sender.segment(Kind.NOP).pack() + garbage(sender))


@case("garbage-after-request", "closed", client_only=True)
def _garbage_after_request(sender):
    """Random bytes directly after the Connect Request."""
    sender.start()
    sender.send_joined(sender.make_request(), garbage(sender))


@case("garbage-fields", "closed", client_only=True)
def _garbage_fields(sender):
    """A Connect Request whose CE header is random."""
    sender.start()
    data = sender.make_request().pack()
    head = data[:wire.SEGMENT_BYTES]
    sender.send(head + sender.random.randbytes(len(data) - len(head)))


def _slowly(sender, data):
    for index in range(len(data)):
        sender.send(data[index:index + 1])
        time.sleep(0.02)


@case("slow-half", "closed", by_name_only=True, client_only=True)
def _slow_half(sender):
    """Half of a Connect Request, one byte per 20 ms."""
    sender.start()
    data = sender.make_request().pack()
    _slowly(sender, data[:len(data) // 2])


@case("slow-whole", "accept", client_only=True)
def _slow_whole(sender):
    """A complete Connect Request, one byte per 20 ms."""
    sender.start()
    _slowly(sender, sender.make_request().pack())


@case("slow-send", "open")
def _slow_send(sender):
    """A valid Send, one byte per 20 ms."""
    sender.connect()
    _slowly(sender, sender.segment(Kind.SEND, b"slow").pack())


@case("close-early", "accept", client_only=True)
def _close_early(sender):
    """Closes after each byte of a Connect Request; then a valid one."""
    length = len(_request_bytes(sender))
    for position in range(length):
        sender.start()
        sender.send(sender.make_request().pack()[:position])
        sender.session.sock.close()
    return sender.reconnect()


def _request_bytes(sender):
    """Return the bytes of a Connect Request without a connection."""
    options = sender.options
    parameters = ConnectParameters(
        own=options.calling, called=options.called
    )
    header = wire.SegmentHeader(Kind.CONNECT_REQUEST)
    return Segment(header, parameters.ce()).pack()


@case("close-mid-payload", "closed")
def _close_mid_payload(sender):
    """FIN in the middle of the payload of a Send."""
    session = sender.connect()
    segment = sender.segment(Kind.SEND, bytes(1000))
    sender.send(segment.pack()[:500])
    session.sock.shutdown(socket.SHUT_WR)


@case("close-mid-header", "closed")
def _close_mid_header(sender):
    """FIN in the middle of a segment header."""
    session = sender.connect()
    sender.send(sender.segment(Kind.SEND, bytes(1000)).pack()[:10])
    session.sock.shutdown(socket.SHUT_WR)


@case("close-mid-message", "closed")
def _close_mid_message(sender):
    """FIN between two segments of a Send."""
    session = sender.connect()
    sender.send(sender.segment(Kind.SEND, bytes(1000), flags=0))
    session.sock.shutdown(socket.SHUT_WR)


@case("reset-mid-message", "local-close")
def _reset_mid_message(sender):
    """RST between two segments of a Send."""
    session = sender.connect()
    sender.send(sender.segment(Kind.SEND, bytes(1000), flags=0))
    now = struct.pack("ii", 1, 0)
    session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    session.sock.close()
    return "local-close", "local-close"


@case("nop-flood", "open")
def _nop_flood(sender):
    """Thousands of valid NOPs."""
    sender.connect()
    for _ in range(3000):
        sender.send(sender.segment(Kind.NOP))


@case("half-open-flood", "accept", client_only=True)
def _half_open_flood(sender):
    """100 TCP connections without a request; then a valid one."""
    for _ in range(100):
        sender.others.append(sender.tcp())
    return sender.reconnect()
