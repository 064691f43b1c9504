"""Malformed TLS handshakes and records; these cases need the TLS options."""

import select
import socket
import time
from argparse import Namespace

from malformed_cases import garbage, case
from tls import Tls
from wire import Kind


def _end(sender):
    """Return (tag, text): whether the peer closes the connection."""
    sock = sender.others[-1]
    deadline = time.monotonic() + sender.options.watch_timeout
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sock], [], [], left)[0]:
            try:
                if not sock.recv(1 << 16):
                    return "closed", "closed"
            except OSError:
                return "closed", "closed"
    return "open", "open"


def _raw(sender):
    """Open a TCP connection that is closed at the end of the case."""
    sender.others.append(sender.tcp())
    return sender.others[-1]


def _end_of(sender, sock=None, **without):
    """Return TLS on a new connection, before the handshake."""
    options = Namespace(**{**vars(sender.options), **without})
    return Tls(sock or _raw(sender), options, False, options.host)


def _flights(sender):
    """Do the handshake; return TLS and the last flight, not sent."""
    end = _end_of(sender)
    while True:
        done, out = end.step()
        if done:
            return end, out
        end.put(out)
        end.get(sender.options.watch_timeout)


def _slowly(sock, data):
    """Sends the headers byte by byte and the rest in pieces: fast enough for the timeout of the response."""
    ends = [*range(1, 17), *range(17, len(data), 50), len(data)]
    for begin, end in zip([0, *ends], ends):
        sock.sendall(data[begin:end])
        time.sleep(0.002)


@case("tls-garbage", "closed", by_name_only=True, client_only=True)
def _tls_garbage(sender):
    """Random bytes instead of a ClientHello."""
    _raw(sender).sendall(garbage(sender))
    return _end(sender)


@case("tls-plain-request", "closed", by_name_only=True, client_only=True)
def _tls_plain(sender):
    """A Connect Request without TLS."""
    sock = _raw(sender)
    sender.start(sock)
    sock.setblocking(True)
    sock.sendall(sender.make_request().pack())
    return _end(sender)


@case("tls-silence", "closed", by_name_only=True, client_only=True)
def _tls_silence(sender):
    """Only a ClientHello."""
    end = _end_of(sender)
    end.put(end.step()[1])
    return _end(sender)


@case("tls-hello-cut", "accept", by_name_only=True, client_only=True)
def _tls_hello_cut(sender):
    """Truncates the ClientHello at many offsets; then a valid one."""
    length = len(_end_of(sender).step()[1])
    for position in range(0, length, 16):
        end = _end_of(sender)
        end.put(end.step()[1][:position])
        end.close()
    return sender.reconnect()


@case("tls-finished-cut", "accept", by_name_only=True, client_only=True)
def _tls_finished_cut(sender):
    """Truncates the last flight at many offsets; then a valid one."""
    length = len(_flights(sender)[1])
    for position in range(0, length, 64):
        end, out = _flights(sender)
        end.put(out[:position])
        end.close()
    return sender.reconnect()


@case("tls-finished-withheld", "closed", by_name_only=True, client_only=True)
def _tls_finished_withheld(sender):
    """The last flight is not sent: the server times out."""
    _flights(sender)
    sender.options = Namespace(**{**vars(sender.options), "watch_timeout": 10})
    return _end(sender)


@case("tls-finished-wrong", "closed", by_name_only=True, client_only=True)
def _tls_finished_wrong(sender):
    """A bit of the last flight is flipped."""
    end, out = _flights(sender)
    end.put(out[:-1] + bytes([out[-1] ^ 1]))
    return _end(sender)


@case("tls-slow", "accept", by_name_only=True, client_only=True)
def _tls_slow(sender):
    """A handshake sent in small pieces, then a valid request."""
    end = _end_of(sender)
    done = False
    while not done:
        done, out = end.step()
        end.raw.setblocking(True)
        _slowly(end.raw, out)
        end.raw.setblocking(False)
        if not done:
            end.get(sender.options.watch_timeout)
    sender.start(end)
    sender.send(sender.make_request())


@case("tls-no-certificate", "closed", by_name_only=True, client_only=True)
def _tls_no_certificate(sender):
    """A handshake without a client certificate."""
    _end_of(sender, tls_certificate=None).handshake()
    return _end(sender)


@case("tls-record-wrong", "closed", by_name_only=True, client_only=True)
def _tls_record_wrong(sender):
    """A bit of a record is flipped."""
    session = sender.connect()
    end = session.sock
    end.tls.write(bytes(100))
    out = end.outgoing.read()
    end.put(out[:40] + bytes([out[40] ^ 1]) + out[41:])


@case("tls-garbage-connected", "closed", by_name_only=True, client_only=True)
def _tls_garbage_connected(sender):
    """Random bytes instead of a record."""
    sender.connect().sock.put(garbage(sender))


@case("tls-cut", "closed", by_name_only=True, client_only=True)
def _tls_cut(sender):
    """TCP is closed without a close_notify of TLS."""
    sender.connect().sock.raw.shutdown(socket.SHUT_WR)


@case("tls-end", "closed", by_name_only=True, client_only=True)
def _tls_end(sender):
    """TLS is closed, TCP is not."""
    _end_tls(sender.connect().sock)


@case("tls-end-after-record", "closed", by_name_only=True, client_only=True)
def _tls_end_after_record(sender):
    """TLS is closed directly after a NOP, TCP is not."""
    end = sender.connect().sock
    end.tls.write(sender.segment(Kind.NOP).pack())
    _end_tls(end)


@case("tls-garbage-after-record", "closed", by_name_only=True,
      client_only=True)
def _tls_garbage_after_record(sender):
    """Random bytes directly after the record of a NOP."""
    end = sender.connect().sock
    end.tls.write(sender.segment(Kind.NOP).pack())
    end.put(end.outgoing.read() + garbage(sender))


def _end_tls(end):
    """Send a close_notify."""
    try:
        end.tls.unwrap()
    except OSError:
        pass
    end.put(end.outgoing.read())
