"""TLS 1.3 with the interface of a socket, by the ssl module (OpenSSL).

Both sides send a certificate.  TLS uses memory buffers, so that malformed
cases can change or withhold its bytes.
"""

import select
import socket
import ssl
import time

OPTIONS = ("--tls-certificate", "--tls-key", "--tls-authorities")


def add_options(parser):
    """Add the options of TLS to a parser; all three, or none."""
    for name in OPTIONS:
        parser.add_argument(name, help="PEM file; enables TLS")


def is_wanted(options):
    """Whether the options enable TLS."""
    return options.tls_authorities is not None


def context(options, passive):
    """Return the TLS context of one side."""
    kind = ssl.PROTOCOL_TLS_SERVER if passive else ssl.PROTOCOL_TLS_CLIENT
    result = ssl.SSLContext(kind)
    result.minimum_version = ssl.TLSVersion.TLSv1_3
    result.verify_mode = ssl.CERT_REQUIRED
    result.load_verify_locations(options.tls_authorities)
    if options.tls_certificate is not None:
        result.load_cert_chain(options.tls_certificate, options.tls_key)
    return result


class Tls:
    """A TLS connection with the socket methods that a session uses."""

    def __init__(self, sock, options, passive, host=None, strict=True):
        self.raw = sock
        self.raw.setblocking(False)
        self.strict = strict
        self.timeout = getattr(options, "timeout", 10.0)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.eof = False
        self.tls = context(options, passive).wrap_bio(
            self.incoming, self.outgoing, server_side=passive,
            server_hostname=host
        )

    # the handshake

    def step(self):
        """Continue the handshake; return (done, outgoing bytes)."""
        try:
            self.tls.do_handshake()
            return True, self.outgoing.read()
        except ssl.SSLWantReadError:
            return False, self.outgoing.read()
        except ssl.SSLError:
            # Send the alert.
            self.put(self.outgoing.read())
            raise

    def handshake(self):
        """Do the complete handshake."""
        while True:
            done, out = self.step()
            self.put(out)
            if done:
                return self
            self.get(self.timeout)

    def get(self, seconds):
        """Wait for bytes of the peer."""
        if not select.select([self.raw], [], [], seconds)[0]:
            raise OSError(f"timed out after {seconds} s in the handshake")
        data = self.raw.recv(1 << 16)
        if not data:
            raise OSError("closed by the peer in the handshake")
        self.incoming.write(data)

    def put(self, data):
        """Write all bytes; receives meanwhile."""
        deadline = time.monotonic() + self.timeout
        view = memoryview(data)
        while view:
            wanted = [] if self.eof else [self.raw]
            ready = select.select(wanted, [self.raw], [], self.timeout)
            if ready[0]:
                self._take_in()
            if ready[1]:
                view = view[self.raw.send(view):]
            elif time.monotonic() >= deadline:
                raise OSError(f"send timed out after {self.timeout} s")

    def _take_in(self):
        """Receive available bytes; return whether there were any."""
        try:
            data = self.raw.recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if data:
            self.incoming.write(data)
        else:
            self.eof = True
            self.incoming.write_eof()
        return True

    # socket methods

    def fileno(self):
        """Return the descriptor for select."""
        return self.raw.fileno()

    def setsockopt(self, *words):
        """Set an option of the TCP socket."""
        self.raw.setsockopt(*words)

    def setblocking(self, _):
        """Do nothing: recv never blocks."""

    def send(self, data):
        """Send some of these bytes."""
        taken = self.tls.write(data[:1 << 14])
        self.put(self.outgoing.read())
        return taken

    def recv(self, _):
        """Return all available bytes; b"" at the end."""
        if not self.eof:
            while self._take_in() and not self.eof:
                pass
        parts = []
        try:
            while part := self.tls.read(1 << 16):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            ended = False
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLEOFError:
            if self.strict and not parts:
                raise OSError("TCP was closed without close_notify") from None
            ended = not parts
        except ssl.SSLError:
            if self.strict:
                raise
            ended = True
        try:
            self.put(self.outgoing.read())
        except (BrokenPipeError, ConnectionResetError):
            # The peer cannot receive an alert any more.
            pass
        if parts or ended:
            return b"".join(parts)
        raise BlockingIOError

    def shutdown(self, _):
        """Close the sending direction of TLS and TCP."""
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            # unwrap also waits for the close_notify of the peer.
            pass
        self.put(self.outgoing.read())
        self.raw.shutdown(socket.SHUT_WR)

    def close(self):
        """Close the TCP connection."""
        self.raw.close()


def secured(sock, options, passive, strict=True):
    """Return the socket, with TLS if the options enable it."""
    if not is_wanted(options):
        return sock
    host = None if passive else options.host
    return Tls(sock, options, passive, host, strict).handshake()
