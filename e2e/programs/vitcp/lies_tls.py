"""Lies of TLS and in its handshake; they need the options of TLS."""

import select
import socket
import time
from argparse import Namespace

from lies import garbage, lie
from tls import Tls
from wire import Kind


def _end(liar):
    """Return (tag, text): whether the other side closes."""
    sock = liar.others[-1]
    deadline = time.monotonic() + liar.options.patience
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sock], [], [], left)[0]:
            try:
                if not sock.recv(1 << 16):
                    return "closed", "closed"
            except OSError:
                return "closed", "closed"
    return "kept", "kept"


def _raw(liar):
    """Open a TCP connection that is closed in the end."""
    liar.others.append(liar.tcp())
    return liar.others[-1]


def _end_of(liar, sock=None, **without):
    """Return our end of TLS on a new connection, nothing said yet."""
    options = Namespace(**{**vars(liar.options), **without})
    return Tls(sock or _raw(liar), options, False, options.host)


def _flights(liar):
    """Do the handshake; return its end and our last flight, not sent."""
    end = _end_of(liar)
    while True:
        done, out = end.step()
        if done:
            return end, out
        end.put(out)
        end.get(liar.options.patience)


def _slowly(sock, data):
    for index in range(len(data)):
        sock.sendall(data[index:index + 1])
        time.sleep(0.002)


@lie("tls-garbage", "closed", apart=True, asks=True)
def _tls_garbage(liar):
    """Random bytes instead of a ClientHello."""
    _raw(liar).sendall(garbage(liar))
    return _end(liar)


@lie("tls-plain-request", "closed", apart=True, asks=True)
def _tls_plain(liar):
    """A Connect Request without TLS."""
    sock = _raw(liar)
    liar.start(sock)
    sock.setblocking(True)
    sock.sendall(liar.request().pack())
    return _end(liar)


@lie("tls-silence", "closed", apart=True, asks=True)
def _tls_silence(liar):
    """A ClientHello, and no more."""
    end = _end_of(liar)
    end.put(end.step()[1])
    return _end(liar)


@lie("tls-hello-cut", "accept", apart=True, asks=True)
def _tls_hello_cut(liar):
    """Ends at many places of the ClientHello in turn; then is honest."""
    length = len(_end_of(liar).step()[1])
    for position in range(0, length, 16):
        end = _end_of(liar)
        end.put(end.step()[1][:position])
        end.close()
    return liar.still_serves()


@lie("tls-finished-cut", "accept", apart=True, asks=True)
def _tls_finished_cut(liar):
    """Ends at many places of the last flight in turn; then is honest."""
    length = len(_flights(liar)[1])
    for position in range(0, length, 64):
        end, out = _flights(liar)
        end.put(out[:position])
        end.close()
    return liar.still_serves()


@lie("tls-finished-kept", "closed", apart=True, asks=True)
def _tls_finished_kept(liar):
    """The last flight never comes: the server waits as long as it may."""
    _flights(liar)
    liar.options = Namespace(**{**vars(liar.options), "patience": 10})
    return _end(liar)


@lie("tls-finished-wrong", "closed", apart=True, asks=True)
def _tls_finished_wrong(liar):
    """A bit of the last flight is another one."""
    end, out = _flights(liar)
    end.put(out[:-1] + bytes([out[-1] ^ 1]))
    return _end(liar)


@lie("tls-slow", "accept", apart=True, asks=True)
def _tls_slow(liar):
    """A handshake whose bytes come one by one; then is honest in it."""
    end = _end_of(liar)
    done = False
    while not done:
        done, out = end.step()
        end.raw.setblocking(True)
        _slowly(end.raw, out)
        end.raw.setblocking(False)
        if not done:
            end.get(liar.options.patience)
    liar.start(end)
    liar.say(liar.request())


@lie("tls-no-certificate", "closed", apart=True, asks=True)
def _tls_no_certificate(liar):
    """A handshake in which we do not say who we are."""
    _end_of(liar, tls_certificate=None).shake()
    return _end(liar)


@lie("tls-record-wrong", "closed", apart=True, asks=True)
def _tls_record_wrong(liar):
    """A bit of a record is another one."""
    session = liar.connect()
    end = session.sock
    end.tls.write(bytes(100))
    out = end.goes.read()
    end.put(out[:40] + bytes([out[40] ^ 1]) + out[41:])


@lie("tls-garbage-connected", "closed", apart=True, asks=True)
def _tls_garbage_connected(liar):
    """Random bytes instead of a record."""
    liar.connect().sock.put(garbage(liar))


@lie("tls-cut", "closed", apart=True, asks=True)
def _tls_cut(liar):
    """TCP ends, and TLS says nothing of it."""
    liar.connect().sock.raw.shutdown(socket.SHUT_WR)


@lie("tls-end", "closed", apart=True, asks=True)
def _tls_end(liar):
    """TLS ends, and TCP does not."""
    _end_tls(liar.connect().sock)


@lie("tls-end-behind", "closed", apart=True, asks=True)
def _tls_end_behind(liar):
    """TLS ends right behind a NOP, and TCP does not."""
    end = liar.connect().sock
    end.tls.write(liar.segment(Kind.NOP).pack())
    _end_tls(end)


@lie("tls-garbage-behind", "closed", apart=True, asks=True)
def _tls_garbage_behind(liar):
    """Random bytes right behind the record of a NOP."""
    end = liar.connect().sock
    end.tls.write(liar.segment(Kind.NOP).pack())
    end.put(end.goes.read() + garbage(liar))


def _end_tls(end):
    """Say by TLS that nothing more comes."""
    try:
        end.tls.unwrap()
    except OSError:
        pass
    end.put(end.goes.read())
