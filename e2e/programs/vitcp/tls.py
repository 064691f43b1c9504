"""TLS 1.3 in the place of a TCP socket, by the ssl module over OpenSSL.

Both ends show a certificate.  The bytes of TLS go through buffers here, so
that a liar can hold them back.
"""

import select
import socket
import ssl
import time

OPTIONS = ("--tls-certificate", "--tls-key", "--tls-authorities")


def add_options(parser):
    """Add the options of TLS to a parser; all three, or none."""
    for name in OPTIONS:
        parser.add_argument(name, help="PEM file; with it, TLS is spoken")


def is_wanted(options):
    """Whether the options ask for TLS."""
    return options.tls_authorities is not None


def context(options, passive):
    """Return the context of one end."""
    kind = ssl.PROTOCOL_TLS_SERVER if passive else ssl.PROTOCOL_TLS_CLIENT
    result = ssl.SSLContext(kind)
    result.minimum_version = ssl.TLSVersion.TLSv1_3
    result.verify_mode = ssl.CERT_REQUIRED
    result.load_verify_locations(options.tls_authorities)
    if options.tls_certificate is not None:
        result.load_cert_chain(options.tls_certificate, options.tls_key)
    return result


class Tls:
    """One end; has what a session wants of a socket."""

    def __init__(self, sock, options, passive, host=None, strict=True):
        self.raw = sock
        self.raw.setblocking(False)
        self.strict = strict
        self.timeout = getattr(options, "timeout", 10.0)
        self.came = ssl.MemoryBIO()
        self.goes = ssl.MemoryBIO()
        self.over = False
        self.tls = context(options, passive).wrap_bio(
            self.came, self.goes, server_side=passive, server_hostname=host
        )

    # the handshake

    def step(self):
        """Go on as far as what came allows; return (done, what goes out)."""
        try:
            self.tls.do_handshake()
            return True, self.goes.read()
        except ssl.SSLWantReadError:
            return False, self.goes.read()
        except ssl.SSLError:
            # The other side hears why.
            self.put(self.goes.read())
            raise

    def shake(self):
        """Do the whole handshake."""
        while True:
            done, out = self.step()
            self.put(out)
            if done:
                return self
            self.get(self.timeout)

    def get(self, seconds):
        """Wait for bytes of the other side."""
        if not select.select([self.raw], [], [], seconds)[0]:
            raise OSError(f"nothing came for {seconds} s in the handshake")
        data = self.raw.recv(1 << 16)
        if not data:
            raise OSError("closed by the other side in the handshake")
        self.came.write(data)

    def put(self, data):
        """Write all of it; takes in what comes meanwhile."""
        deadline = time.monotonic() + self.timeout
        view = memoryview(data)
        while view:
            wanted = [] if self.over else [self.raw]
            ready = select.select(wanted, [self.raw], [], self.timeout)
            if ready[0]:
                self._take_in()
            if ready[1]:
                view = view[self.raw.send(view):]
            elif time.monotonic() >= deadline:
                raise OSError(f"nothing could be sent for {self.timeout} s")

    def _take_in(self):
        """Take in what is there; return whether there was anything."""
        try:
            data = self.raw.recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if data:
            self.came.write(data)
        else:
            self.over = True
            self.came.write_eof()
        return True

    # as a socket

    def fileno(self):
        """Return what select waits for."""
        return self.raw.fileno()

    def setsockopt(self, *words):
        """Set an option of the TCP socket."""
        self.raw.setsockopt(*words)

    def setblocking(self, _):
        """It never blocks for what comes."""

    def send(self, data):
        """Send some of these bytes."""
        taken = self.tls.write(data[:1 << 14])
        self.put(self.goes.read())
        return taken

    def recv(self, _):
        """Return all that is there; b"" at the end."""
        if not self.over:
            while self._take_in() and not self.over:
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
                raise OSError("TCP ended, and TLS did not") from None
            ended = not parts
        except ssl.SSLError:
            if self.strict:
                raise
            ended = True
        try:
            self.put(self.goes.read())
        except (BrokenPipeError, ConnectionResetError):
            # Nobody hears an alert any more.
            pass
        if parts or ended:
            return b"".join(parts)
        raise BlockingIOError

    def shutdown(self, _):
        """Say that nothing more comes, by TLS and by TCP."""
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            # It waits for the other side to say the same.
            pass
        self.put(self.goes.read())
        self.raw.shutdown(socket.SHUT_WR)

    def close(self):
        """Close the TCP connection."""
        self.raw.close()


def secured(sock, options, passive, strict=True):
    """Put TLS in front of a socket if the options ask for it."""
    if not is_wanted(options):
        return sock
    host = None if passive else options.host
    return Tls(sock, options, passive, host, strict).shake()
