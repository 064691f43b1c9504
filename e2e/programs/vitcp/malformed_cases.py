"""The table of malformed cases, and the connection of one case."""

import random
import select
import socket
import time
from dataclasses import dataclass, replace

import key_proof
import tls
import wire
from connection import Connection
from common import Failure, report
from session import REGION, ConnectParameters, Session
from wire import Kind, Segment

UNKNOWN_ADDRESS = 0x7FFF00000000
UNKNOWN_HANDLE = 0xDEADBEEF
ANSWER = "answer-"
# Seconds to wait for a client.
CLIENT_TIMEOUT = 30.0
# A message that peers with probe support echo (--probe).
PROBE = b"probe"


class NotRun(Exception):
    """The case could not be run."""


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    name: str
    run: object
    reception: tuple
    delivery: tuple
    unreliable: tuple
    by_name_only: bool
    client_only: bool
    silent: bool

    def expected(self, level):
        """Return the expected outcomes at `level`."""
        if level == "reliable":
            # The peer is of Reliable Delivery, and reports errors.
            reports = "error" in self.reception
            return self.reception if reports else self.delivery
        by_level = {"ud": self.unreliable, "rd": self.delivery}
        return by_level.get(level, self.reception)


CASES = {}


def case(name, *expected, rd=None, ud=None, by_name_only=False,
         client_only=False, silent=False):
    """Add a function to the table of cases.

    `rd` and `ud` are the expected outcomes at Reliable and Unreliable
    Delivery, if different.  `by_name_only`: not part of `run all`.
    `client_only`: only a client can run it.  `silent`: no valid message can
    follow it.
    """
    def enter(run):
        assert name not in CASES, name
        CASES[name] = Case(
            name, run, expected, rd or expected, ud or expected, by_name_only,
            client_only, silent,
        )
        return run
    return enter


class Sender:
    """The connection of one case."""

    def __init__(self, options, entry=None):
        self.options = options
        self.probes = (
            entry is not None and options.probe and not entry.silent
            and entry.expected(options.level) == ("open",)
        )
        # Without a probe, only the absence of a reaction can be observed.
        self.timeout = options.watch_timeout
        if entry is not None and entry.silent and options.silent_timeout:
            self.timeout = options.silent_timeout
        self.passive = options.command == "serve"
        self.random = random.Random(options.seed)
        self.session = None
        self.others = []

    # valid messages

    def tcp(self):
        """Open a TCP connection."""
        options = self.options
        return socket.create_connection(
            (options.host, options.port), options.watch_timeout
        )

    def secured(self, sock, passive=False):
        """Return the socket, with TLS if the options request it."""
        return tls.secured(sock, self.options, passive, strict=False)

    def start(self, sock=None):
        """Open the TCP connection without sending anything."""
        if self.passive:
            raise NotRun("(it is a case of a client)")
        options = self.options
        parameters = ConnectParameters(
            own=options.calling, called=options.called, level=options.level,
            mtu=options.mtu, flow_control=options.flow_control,
        )
        connection = Connection(active=True, posted=64)
        self.session = Session(
            sock or self.secured(self.tcp()), parameters, connection,
            timeout=options.watch_timeout, split=options.split,
        )
        key_proof.install(self.session, options, active=True)
        return self.session

    def receive_request(self):
        """Listen, and return the CE header of the Connect Request."""
        options = self.options
        report(f"listening {options.listener.getsockname()[1]}")
        options.listener.settimeout(CLIENT_TIMEOUT)
        try:
            sock = options.listener.accept()[0]
        except TimeoutError:
            raise NotRun(f"(no client within {CLIENT_TIMEOUT} s)") from None
        connection = Connection(active=False, posted=64)
        self.session = Session(
            self.secured(sock, True), ConnectParameters(), connection,
            timeout=options.watch_timeout, split=options.split,
        )
        key_proof.install(self.session, options, active=False)
        return self.session.receive_request()

    def make_accept(self, request, **changes):
        """Make a valid Connect Accept, then change its CE header."""
        ce = replace(
            request, calling=request.called, called=request.calling,
            security=b"",
        )
        return self.segment(Kind.CONNECT_ACCEPT, ce=replace(ce, **changes))

    def with_proof(self, accept):
        """Add the proof of the key, if any, to a Connect Accept."""
        if self.session.keyed is None:
            return accept
        ce = self.session.keyed.accept(accept.header.number, accept.ce)
        return replace(accept, ce=ce)

    def accept(self, request):
        """Send a valid Connect Accept."""
        accept = self.with_proof(self.make_accept(request))
        self.send(accept)
        self.session.connection.establish(accept.ce, request, request.mtu)
        self.session.parameters = ConnectParameters(own=request.called)
        self.session.accepted = request
        return self.session

    def connect(self):
        """Establish a valid connection."""
        if self.passive:
            self.accept(self.receive_request())
        else:
            answer = self.request_connection()
            if answer != "accept":
                raise NotRun(f"the valid request was answered {answer}")
        if self.options.region:
            # Received, and acknowledged, before the malformed message.
            self.region()
            self.session.flush()
        return self.session

    def request_connection(self):
        """Send a valid request, repeatedly while no program listens."""
        deadline = time.monotonic() + self.options.watch_timeout
        while True:
            answer = self.start().connect()
            if answer != "no-match" or time.monotonic() >= deadline:
                return answer
            self.session.sock.close()
            time.sleep(0.01)

    def region(self):
        """Return address and handle for RDMA.

        With --region those in the first message of the peer, else unknown
        ones.
        """
        if not self.options.region:
            return UNKNOWN_ADDRESS, UNKNOWN_HANDLE
        session = self.session
        session.wait_for(
            lambda: session.region is not None, self.options.watch_timeout,
            "address and handle",
        )
        address, handle, _length = REGION.unpack(session.region)
        return address, handle

    def segment(self, kind, payload=b"", rdma=None, ce=None, **fields):
        """Make the next valid segment."""
        header = self.session.connection.header(kind, **fields)
        return Segment(header, ce, rdma, payload)

    def make_request(self, **changes):
        """Make a valid Connect Request, then change its CE header."""
        ce = self.session.parameters.ce()
        self.session.connection.propose(ce)
        return self.segment(Kind.CONNECT_REQUEST, ce=replace(ce, **changes))

    def send(self, *segments):
        """Send segments or bytes unchanged."""
        for segment in segments:
            if isinstance(segment, Segment):
                segment = segment.pack()
            self.session.transmit(segment)

    def send_joined(self, *segments):
        """Send segments or bytes in one piece, regardless of --split."""
        split, self.session.split = self.session.split, 0
        self.send(b"".join(
            segment.pack() if isinstance(segment, Segment) else segment
            for segment in segments
        ))
        self.session.split = split

    def changed(self, segment, **changes):
        """Return the segment with a changed header."""
        return replace(segment, header=replace(segment.header, **changes))

    # observation

    def observe(self):
        """Return (tag, text) of the peer's reaction."""
        session = self.session
        if self.probes and self.echo_works():
            return "open", "open"
        deadline = time.monotonic() + self.timeout
        answer = None
        while True:
            try:
                segment = session.buffer.next()
            except wire.WireError as error:
                return "wrong", f"answered with a malformed segment: {error}"
            if segment is not None:
                answer = answer or self.classify(segment)
                if answer and answer[0] != "error":
                    return answer
                continue
            if session.ended:
                return answer or ("closed", "closed")
            left = deadline - time.monotonic()
            if left <= 0:
                if answer:
                    return "unclosed", f"{answer[1]} (not closed)"
                return "open", "open"
            if select.select([session.sock], [], [], left)[0]:
                session.receive_bytes()

    def echo_works(self):
        """Whether a valid message is still echoed."""
        session = self.session
        try:
            session.send(PROBE)
            session.wait_for(
                lambda: any(m.payload == PROBE for m in session.inbox),
                self.options.watch_timeout, "the echo",
            )
            session.wait_acknowledged()
            session.flush()
        except Failure:
            return False
        return True

    def classify(self, segment):
        """Return (tag, text) if a segment is a response to the case."""
        header = segment.header
        code = header.vi_error << 8 | header.is_error
        name = wire.kind_name(header.kind)
        text = f"answered {name} 0x{code:04x}"
        if header.kind in wire.CONNECTION_KINDS:
            return name, text
        if header.vi_error or header.is_error == wire.IS_TRANSPORT:
            return "error", text
        if header.kind == Kind.READ_RESPONSE:
            refused = header.flags & wire.TRANSMIT_ERROR
            return ("refused" if refused else "response"), text
        return None

    def end(self):
        """Close all sockets."""
        if self.session is not None:
            self.session.sock.close()
        for sock in self.others:
            sock.close()

    # valid connections after the case

    def reconnect(self):
        """Open a valid connection; return the outcome."""
        if self.session is not None:
            self.session.sock.close()
        answer = self.request_connection()
        name, _, code = answer.partition(" ")
        return name, f"answered {name} 0x{int(code or 0):04x}"


def garbage(sender, length=4096):
    """Return random bytes that do not start with the Version."""
    data = bytearray(sender.random.randbytes(length))
    if data[0] == wire.VERSION:
        data[0] ^= 0x80
    return bytes(data)
