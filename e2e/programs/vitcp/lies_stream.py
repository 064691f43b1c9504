"""Lies of the TCP stream: garbage, slowness, closing, floods."""

import socket
import struct
import time

import wire
from lies import garbage, lie
from session import Hello
from wire import Kind, Segment


@lie("segment-never-sent", "kept", mute=True)
def _segment_never_sent(liar):
    """A Send of 65535 bytes is announced and never comes."""
    liar.connect()
    segment = liar.segment(Kind.SEND, flags=0, length=wire.MAX_SEGMENT)
    liar.say(segment)


@lie("request-never-sent", "closed", apart=True, asks=True)
def _request_never_sent(liar):
    """A TCP connection on which nothing is said [VI/TCP 4.3]."""
    liar.start()


@lie("garbage-instead", "closed", asks=True)
def _garbage_instead(liar):
    """Random bytes instead of a Connect Request."""
    liar.start()
    liar.say(garbage(liar))


@lie("garbage-connected", "closed")
def _garbage_connected(liar):
    """Random bytes instead of a message."""
    liar.connect()
    liar.say(garbage(liar))


@lie("garbage-behind", "closed")
def _garbage_behind(liar):
    """Random bytes right behind a NOP."""
    liar.connect()
    liar.say(liar.segment(Kind.NOP).pack() + garbage(liar))


@lie("garbage-behind-request", "closed", asks=True)
def _garbage_behind_request(liar):
    """Random bytes right behind the Connect Request."""
    liar.start()
    liar.at_once(liar.request(), garbage(liar))


@lie("garbage-fields", "closed", asks=True)
def _garbage_fields(liar):
    """A Connect Request whose CE header is random."""
    liar.start()
    data = liar.request().pack()
    head = data[:wire.SEGMENT_BYTES]
    liar.say(head + liar.random.randbytes(len(data) - len(head)))


def _slowly(liar, data):
    for index in range(len(data)):
        liar.say(data[index:index + 1])
        time.sleep(0.02)


@lie("slow-half", "closed", apart=True, asks=True)
def _slow_half(liar):
    """Half a Connect Request, a byte each 20 ms."""
    liar.start()
    data = liar.request().pack()
    _slowly(liar, data[:len(data) // 2])


@lie("slow-whole", "accept", asks=True)
def _slow_whole(liar):
    """A whole Connect Request, a byte each 20 ms."""
    liar.start()
    _slowly(liar, liar.request().pack())


@lie("slow-send", "kept")
def _slow_send(liar):
    """No lie: a Send, a byte each 20 ms."""
    liar.connect()
    _slowly(liar, liar.segment(Kind.SEND, b"slow").pack())


@lie("close-early", "accept", asks=True)
def _close_early(liar):
    """Closes at every byte of a Connect Request in turn; then is honest."""
    length = len(_request_bytes(liar))
    for position in range(length):
        liar.start()
        liar.say(liar.request().pack()[:position])
        liar.session.sock.close()
    return liar.still_serves()


def _request_bytes(liar):
    """Return the bytes of a Connect Request without a connection."""
    hello = Hello(own=liar.options.calling, called=liar.options.called)
    header = wire.SegmentHeader(Kind.CONNECT_REQUEST)
    return Segment(header, hello.ce()).pack()


@lie("close-mid-payload", "closed")
def _close_mid_payload(liar):
    """FIN in the middle of the payload of a Send."""
    session = liar.connect()
    segment = liar.segment(Kind.SEND, bytes(1000))
    liar.say(segment.pack()[:500])
    session.sock.shutdown(socket.SHUT_WR)


@lie("close-mid-header", "closed")
def _close_mid_header(liar):
    """FIN in the middle of a segment header."""
    session = liar.connect()
    liar.say(liar.segment(Kind.SEND, bytes(1000)).pack()[:10])
    session.sock.shutdown(socket.SHUT_WR)


@lie("close-mid-message", "closed")
def _close_mid_message(liar):
    """FIN between two segments of a Send."""
    session = liar.connect()
    liar.say(liar.segment(Kind.SEND, bytes(1000), flags=0))
    session.sock.shutdown(socket.SHUT_WR)


@lie("reset-mid-message", "left")
def _reset_mid_message(liar):
    """RST between two segments of a Send."""
    session = liar.connect()
    liar.say(liar.segment(Kind.SEND, bytes(1000), flags=0))
    now = struct.pack("ii", 1, 0)
    session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    session.sock.close()
    return "left", "left"


@lie("nop-flood", "kept")
def _nop_flood(liar):
    """No lie: thousands of NOPs."""
    liar.connect()
    for _ in range(3000):
        liar.say(liar.segment(Kind.NOP))


@lie("half-open-flood", "accept", asks=True)
def _half_open_flood(liar):
    """--count TCP connections that say nothing; then one that is honest."""
    for _ in range(liar.options.count):
        liar.others.append(liar.tcp())
    return liar.still_serves()
