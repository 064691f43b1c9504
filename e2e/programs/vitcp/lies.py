"""The table of lies, and the connection on which one is told."""

import random
import select
import socket
import time
from dataclasses import dataclass, replace

import keyed
import tls
import wire
from conversation import Conversation
from facts import Failure, say
from session import REGION, Hello, Session
from wire import Kind, Segment

NOWHERE = 0x7FFF00000000
NO_HANDLE = 0xDEADBEEF
ANSWER = "answer-"
# Who gets this sends it back, if it is told to (--probe).
PROBE = b"probe"


class Untold(Exception):
    """The lie could not be told."""


@dataclass(frozen=True)
class Lie:
    """One row of the table."""

    name: str
    tell: object
    reception: tuple
    delivery: tuple
    unreliable: tuple
    apart: bool
    asks: bool
    mute: bool

    def expected(self, level):
        """Return the outcomes that are right at `level`."""
        if level == "reliable":
            # The other side is of Reliable Delivery, and tells of errors.
            told = "error" in self.reception
            return self.reception if told else self.delivery
        by_level = {"ud": self.unreliable, "rd": self.delivery}
        return by_level.get(level, self.reception)


LIES = {}


def lie(name, *expected, rd=None, ud=None, apart=False, asks=False,
        mute=False):
    """Enter a function into the table of lies.

    `rd` and `ud` are what is expected at Reliable and Unreliable Delivery, if
    not the same.  `apart`: only told when named, as not everybody can be told.
    `asks`: only who asks for the connection can tell it.  `mute`: nothing
    honest can be said behind it.
    """
    def enter(tell):
        assert name not in LIES, name
        LIES[name] = Lie(
            name, tell, expected, rd or expected, ud or expected, apart,
            asks, mute,
        )
        return tell
    return enter


class Liar:
    """One connection of one lie."""

    def __init__(self, options, entry=None):
        self.options = options
        self.probes = (
            entry is not None and options.probe and not entry.mute
            and entry.expected(options.level) == ("kept",)
        )
        # Who can say nothing behind a lie sees only that nothing happens.
        is_mute = entry is not None and entry.mute and options.quiet
        self.patience = options.quiet if is_mute else options.patience
        self.passive = options.command == "serve"
        self.random = random.Random(options.seed)
        self.session = None
        self.others = []

    # behaving well

    def tcp(self):
        """Open a TCP connection."""
        options = self.options
        source = (options.local_host, 0) if options.local_host else None
        sock = socket.create_connection(
            (options.host, options.port), options.patience, source
        )
        return sock

    def secured(self, sock, passive=False):
        """Put TLS in front of a socket if that is asked for."""
        return tls.secured(sock, self.options, passive, strict=False)

    def start(self, sock=None):
        """Open the TCP connection and say nothing yet."""
        if self.passive:
            raise Untold("(it is a lie of a client)")
        options = self.options
        hello = Hello(
            own=options.calling, called=options.called, level=options.level,
            mtu=options.mtu, flow_control=options.flow_control,
        )
        talk = Conversation(active=True, posted=64)
        self.session = Session(
            sock or self.secured(self.tcp()), hello, talk,
            timeout=options.patience, split=options.split,
        )
        keyed.give(self.session, options, active=True)
        return self.session

    def asked(self):
        """Listen, and return the CE header of the Connect Request."""
        options = self.options
        say(f"listening {options.listener.getsockname()[1]}")
        options.listener.settimeout(options.wait)
        try:
            sock = options.listener.accept()[0]
        except TimeoutError:
            raise Untold(f"(no call in {options.wait} s)") from None
        talk = Conversation(active=False, posted=64)
        self.session = Session(
            self.secured(sock, True), Hello(), talk, timeout=options.patience,
            split=options.split,
        )
        keyed.give(self.session, options, active=False)
        return self.session.request()

    def acceptance(self, request, **changes):
        """Make an honest Connect Accept, then change its CE header."""
        ce = replace(
            request, calling=request.called, called=request.calling,
            security=b"",
        )
        return self.segment(Kind.CONNECT_ACCEPT, ce=replace(ce, **changes))

    def proven(self, accept):
        """Put the proof of a key into a Connect Accept, if there is one."""
        if self.session.keyed is None:
            return accept
        ce = self.session.keyed.accept(accept.header.number, accept.ce)
        return replace(accept, ce=ce)

    def accept(self, request):
        """Accept honestly."""
        accept = self.proven(self.acceptance(request))
        self.say(accept)
        self.session.talk.establish(accept.ce, request, request.mtu)
        self.session.hello = Hello(own=request.called)
        self.session.accepted = request
        return self.session

    def connect(self):
        """Do the normal connect exchange."""
        if self.passive:
            self.accept(self.asked())
        else:
            answer = self.ask()
            if answer != "accept":
                raise Untold(f"the honest request was answered {answer}")
        if self.options.region:
            # Heard, and acknowledged, before any lie is told.
            self.region()
            self.session.flush()
        return self.session

    def ask(self):
        """Connect honestly; asks again while nobody waits for requests."""
        deadline = time.monotonic() + self.options.patience
        while True:
            answer = self.start().connect()
            if answer != "no-match" or time.monotonic() >= deadline:
                return answer
            self.session.sock.close()
            time.sleep(0.01)

    def region(self):
        """Return address and handle: advertised with --region, else made up.

        With --region the first message of the other side says them.
        """
        if not self.options.region:
            return NOWHERE, NO_HANDLE
        session = self.session
        session.wait_for(
            lambda: session.region is not None, self.options.patience,
            "address and handle",
        )
        address, handle, _length = REGION.unpack(session.region)
        return address, handle

    def segment(self, kind, payload=b"", rdma=None, ce=None, **fields):
        """Make the segment an honest side would send now."""
        header = self.session.talk.header(kind, **fields)
        return Segment(header, ce, rdma, payload)

    def request(self, **changes):
        """Make an honest Connect Request, then change its CE header."""
        ce = self.session.hello.ce()
        self.session.talk.propose(ce)
        return self.segment(Kind.CONNECT_REQUEST, ce=replace(ce, **changes))

    def say(self, *segments):
        """Send segments, or bytes, as they are."""
        for segment in segments:
            if isinstance(segment, Segment):
                segment = segment.pack()
            self.session.transmit(segment)

    def at_once(self, *segments):
        """Send segments, or bytes, as one piece, whatever --split says."""
        split, self.session.split = self.session.split, 0
        self.say(b"".join(
            segment.pack() if isinstance(segment, Segment) else segment
            for segment in segments
        ))
        self.session.split = split

    def wrong(self, segment, **changes):
        """Return the segment with changes to its header."""
        return replace(segment, header=replace(segment.header, **changes))

    # watching

    def watch(self):
        """Return (tag, text) of what the other side does."""
        session = self.session
        if self.probes and self.goes_on():
            return "kept", "kept"
        deadline = time.monotonic() + self.patience
        answer = None
        while True:
            try:
                segment = session.buffer.next()
            except wire.WireError as error:
                return "wrong", f"answered wrongly: {error}"
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
                return "kept", "kept"
            if select.select([session.sock], [], [], left)[0]:
                session.take_bytes()

    def goes_on(self):
        """Whether an honest message is still sent back."""
        session = self.session
        try:
            session.send(PROBE)
            session.wait_for(
                lambda: any(came.payload == PROBE for came in session.inbox),
                self.options.patience, "what was sent",
            )
            session.wait_acknowledged()
            session.flush()
        except Failure:
            return False
        return True

    def classify(self, segment):
        """Return (tag, text) if a segment is an answer to a lie."""
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
        """Close whatever is open."""
        if self.session is not None:
            self.session.sock.close()
        for sock in self.others:
            sock.close()

    # honest connections that show that the other side still serves

    def still_serves(self):
        """Connect honestly and return the outcome."""
        if self.session is not None:
            self.session.sock.close()
        answer = self.ask()
        name, _, code = answer.partition(" ")
        return name, f"answered {name} 0x{int(code or 0):04x}"


def garbage(liar, length=4096):
    """Return random bytes that do not begin with Version."""
    data = bytearray(liar.random.randbytes(length))
    if data[0] == wire.VERSION:
        data[0] ^= 0x80
    return bytes(data)
