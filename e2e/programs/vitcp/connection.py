"""The state of a VI/TCP connection: message order, numbers, credits.

Clause numbers in brackets are those of draft-dicecco-vitcp-00.  A segment of
the peer that violates a rule raises a wire.WireError.
"""

import collections
import enum
import random
from dataclasses import dataclass

from wire import (
    CONNECTION_KINDS, END, FLOW_CONTROL, IMMEDIATE, IS_CHALLENGE,
    IS_TRANSPORT, PAYLOAD_KINDS, TRANSMIT_ERROR, Kind, Segment,
    SegmentHeader, WireError, after, distance, kind_name,
)


@dataclass(frozen=True)
class Message:
    """A complete message of the peer."""

    kind: int
    number: int
    payload: bytes
    immediate: int | None
    failed: bool
    segment: Segment

    @property
    def ce(self):
        """The CE header of the last segment."""
        return self.segment.ce

    @property
    def rdma(self):
        """The RDMA header of the last segment."""
        return self.segment.rdma

    @property
    def consumes(self):
        """Whether it uses a receive descriptor [VI/TCP 3.1]."""
        return self.kind == Kind.SEND or (
            self.kind == Kind.WRITE and self.immediate is not None
        )


class _Assembly:
    """An incomplete message."""

    def __init__(self, segment):
        self.kind = segment.header.kind
        self.number = segment.header.number
        self.rdma = segment.rdma
        self.parts = []
        self.bytes = 0
        self.immediate = None
        self.failed = False

    def add(self, segment, mtu):
        """Add the next segment; return the Message if it was the last."""
        header = segment.header
        name = kind_name(self.kind)
        if segment.rdma != self.rdma:
            raise WireError(f"{name}: RDMA header changes in mid-message")
        if header.offset != self.bytes:
            raise WireError(
                f"{name}: Data Offset is {header.offset}, not {self.bytes}"
            )
        self.parts.append(segment.payload)
        self.bytes += len(segment.payload)
        self.failed |= bool(header.flags & TRANSMIT_ERROR)
        # Any segment may have it [VI/TCP 3.1].
        if header.flags & IMMEDIATE and self.immediate is None:
            self.immediate = header.immediate
        if self.bytes > mtu:
            raise WireError(f"{name}: {self.bytes} bytes, MTU Size is {mtu}")
        if self.rdma and self.kind in PAYLOAD_KINDS:
            wanted = self.rdma.length
            if self.bytes > wanted:
                raise WireError(
                    f"{name}: {self.bytes} bytes, RDMA Length is {wanted}"
                )
            ended = header.flags & END
            if ended and self.bytes != wanted and not self.failed:
                raise WireError(
                    f"{name}: ends at {self.bytes}, RDMA Length is {wanted}"
                )
        if not header.flags & END:
            return None
        return Message(
            kind=self.kind,
            number=self.number,
            payload=b"".join(self.parts),
            immediate=self.immediate,
            failed=self.failed,
            segment=segment,
        )


class Phase(enum.Enum):
    """The state of a connection [VI/TCP 4.2, 4.3]."""

    REQUEST = "awaiting a Connect Request"
    PENDING = "a Connect Request is pending"
    ANSWER = "awaiting the answer to a Connect Request"
    CONNECTED = "connected"
    ENDING = "waiting for the close by the peer"


_ALLOWED = {
    Phase.REQUEST: (Kind.CONNECT_REQUEST,),
    Phase.PENDING: (),
    Phase.ANSWER: (
        Kind.CONNECT_ACCEPT, Kind.CONNECT_REJECT, Kind.CONNECT_NO_MATCH
    ),
    Phase.CONNECTED: (
        Kind.SEND, Kind.READ_REQUEST, Kind.READ_RESPONSE, Kind.WRITE, Kind.NOP
    ),
    Phase.ENDING: (),
}


class Connection:
    """Numbers, acknowledgements and credits of one connection.

    header() makes outgoing headers; check() validates incoming segments and
    raises WireError if they violate the rules.
    """

    def __init__(self, active, number=None, posted=0, used=0):
        self.phase = Phase.ANSWER if active else Phase.REQUEST
        self.receives_acks = False
        self.sends_acks = False
        self.flow_control = False
        self.mtu = 0xFFFFFFFF
        if number is None:
            number = random.getrandbits(32)
        self.next_number = number
        self.last_number = None
        self.acked = None
        self.request_number = None
        self.received_number = None
        self.received_complete = 0
        self.posted = posted
        self.advertised = None
        self.remote_posted = None
        self.used_locally = used
        self.used_remotely = used
        self.error = None
        self.reads = collections.deque()
        self._partial = None
        self._response = None
        self._own_ce = None

    # outgoing

    def header(self, kind, **fields):
        """Make a header with the next number, or with `number` if given."""
        if "number" not in fields:
            fields["number"] = self.next_number
            self.last_number = self.next_number
            self.next_number = after(self.next_number)
            if kind == Kind.CONNECT_REQUEST:
                self.request_number = self.last_number
        fields.setdefault("ack", self.received_complete)
        fields.setdefault("posted", self.posted % 0x10000)
        self.advertised = self.posted
        return SegmentHeader(kind=kind, **fields)

    def establish(self, own, other, mtu):
        """Enter the state connected with the negotiated values."""
        self.phase = Phase.CONNECTED
        self.acked = self.last_number
        self.receives_acks = own.needs_acks
        self.sends_acks = other.needs_acks
        both = own.attributes & other.attributes
        self.flow_control = bool(both & FLOW_CONTROL)
        self.mtu = mtu

    def propose(self, own):
        """Store the CE header of the local Connect Request."""
        self._own_ce = own
        self.phase = Phase.ANSWER

    @property
    def credits(self):
        """Receive descriptors of the peer that may still be used."""
        return distance(self.used_locally, self.remote_posted, 16)

    # incoming

    def check(self, segment):
        """Validate a segment; return the Message it completes, or None."""
        header = segment.header
        name = kind_name(header.kind)
        if header.kind not in _ALLOWED[self.phase]:
            raise WireError(f"{name} while {self.phase.value}")
        self._check_number(header, name)
        self._check_ack(header, name)
        self._check_posted(header, name)
        if header.kind in PAYLOAD_KINDS:
            message = self._assemble(segment)
        else:
            self._check_range(segment)
            message = _Assembly(segment).add(segment, self.mtu)
        if message is None:
            return None
        if message.kind != Kind.READ_RESPONSE and not message.failed:
            self.received_complete = message.number
        if header.kind in CONNECTION_KINDS:
            self._connection(segment)
        if message.consumes:
            self._consume(name)
        return message

    def _check_number(self, header, name):
        """Numbers are consecutive, one per message [VI/TCP 3.1]."""
        if header.kind == Kind.READ_RESPONSE:
            if not self.reads:
                raise WireError(f"{name}: no read request is pending")
            if header.number != self.reads[0][0]:
                raise WireError(
                    f"{name}: Message Number is {header.number}, the request "
                    f"has {self.reads[0][0]}"
                )
            return
        if self._partial is not None:
            wanted = self._partial.number
            if header.number != wanted or header.kind != self._partial.kind:
                raise WireError(
                    f"{name} {header.number} inside of "
                    f"{kind_name(self._partial.kind)} {wanted}"
                )
        elif self.received_number is not None:
            wanted = after(self.received_number)
            if header.number != wanted:
                raise WireError(
                    f"{name}: Message Number is {header.number}, not {wanted}"
                )
        self.received_number = header.number

    def _check_ack(self, header, name):
        """Message ACK and Remote Error Code [VI/TCP 3.1]."""
        failing = header.vi_error or header.is_error == IS_TRANSPORT
        if header.vi_error and not self.receives_acks:
            raise WireError(
                f"{name}: VI Error Type is {header.vi_error} on a connection "
                "that is not of Reliable Reception"
            )
        if header.kind in CONNECTION_KINDS:
            refusal = header.kind in (
                Kind.CONNECT_REJECT, Kind.CONNECT_NO_MATCH
            )
            accept = header.kind == Kind.CONNECT_ACCEPT
            own = self._own_ce
            is_checked = own is not None and own.needs_acks
            if refusal or accept and is_checked:
                if header.ack != self.request_number:
                    raise WireError(
                        f"{name}: Message ACK is {header.ack}, the request "
                        f"has {self.request_number}"
                    )
            return
        if not self.receives_acks:
            return
        step = distance(self.acked, header.ack)
        if step > distance(self.acked, self.last_number):
            raise WireError(
                f"{name}: Message ACK is {header.ack}, not {self.acked} "
                f"to {self.last_number}"
            )
        if not failing:
            self.acked = header.ack
            return
        if step == 0:
            raise WireError(
                f"{name}: an error of message {header.ack}, which was "
                "acknowledged"
            )
        self.error = (header.vi_error, header.is_error, header.ack)
        self.phase = Phase.ENDING

    def _check_posted(self, header, name):
        """Rx Descriptors Posted never decreases, modulo 2^16 [VI/TCP 3.1]."""
        if self.remote_posted is not None:
            step = distance(self.remote_posted, header.posted, 16)
            if self.flow_control:
                least = distance(self.used_locally, self.remote_posted, 16)
                wrong = least + step > 0xFFFF
            else:
                wrong = step >= 0x8000
            if wrong:
                raise WireError(
                    f"{name}: Rx Descriptors Posted goes from "
                    f"{self.remote_posted} back to {header.posted}"
                )
        self.remote_posted = header.posted

    def _assemble(self, segment):
        """Segments of one message are consecutive [VI/TCP 2.2.2.2.3]."""
        header = segment.header
        response = header.kind == Kind.READ_RESPONSE
        assembly = self._response if response else self._partial
        if assembly is None:
            assembly = _Assembly(segment)
            self._check_range(segment)
            if response and segment.rdma != self.reads[0][1]:
                raise WireError(
                    "read-response: RDMA header is not that of the request"
                )
        message = assembly.add(segment, self.mtu)
        kept = assembly if message is None else None
        if response:
            self._response = kept
            if message is not None:
                self.reads.popleft()
        else:
            self._partial = kept
        return message

    def _check_range(self, segment):
        """No message is longer than the negotiated MTU Size [VI/TCP 3.2]."""
        if segment.rdma is not None and segment.rdma.length > self.mtu:
            raise WireError(
                f"{kind_name(segment.header.kind)}: RDMA Length is "
                f"{segment.rdma.length}, MTU Size is {self.mtu}"
            )

    def _consume(self, name):
        """Each message needs a credit [VI/TCP 2.2.1, 3.1]."""
        if self.flow_control:
            if distance(self.used_remotely, self.advertised, 16) == 0:
                raise WireError(
                    f"{name}: sent without a credit, Rx Descriptors Posted "
                    f"is {self.advertised % 0x10000}"
                )
        self.used_remotely = after(self.used_remotely, 1, 16)

    def _connection(self, segment):
        """Connect Request, Accept, Reject, No Match [VI/TCP 3.2, 4]."""
        kind = segment.header.kind
        if kind == Kind.CONNECT_REQUEST:
            self.phase = Phase.PENDING
        elif kind == Kind.CONNECT_ACCEPT:
            _check_accept(self._own_ce, segment.ce)
            self.establish(self._own_ce, segment.ce, segment.ce.mtu)
        elif segment.header.is_error != IS_CHALLENGE:
            self.phase = Phase.ENDING


def _check_accept(own, accept):
    """Validate the CE header of a Connect Accept [VI/TCP 3.2]."""
    if accept.calling != own.called:
        raise WireError(
            f"accept: Calling Discriminator is {accept.calling!r}, "
            f"{own.called!r} was called"
        )
    if accept.called != own.calling:
        raise WireError(
            f"accept: Called Discriminator is {accept.called!r}, "
            f"{own.calling!r} was calling"
        )
    if accept.reliable != own.reliable:
        raise WireError("accept: Reliable is not that of the request")
    levels = {own.exact_level, accept.exact_level} - {0}
    if len(levels) > 1:
        raise WireError("accept: exact level is not that of the request")
    if accept.mtu > own.mtu:
        raise WireError(
            f"accept: MTU Size is {accept.mtu}, {own.mtu} was proposed"
        )
