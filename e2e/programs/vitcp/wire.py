"""The VI/TCP wire format: headers and segments, with strict validation.

Clause numbers in brackets are those of draft-dicecco-vitcp-00, numbers of
types, bits and codes are those of docs/spec/vitcp.md.  An invalid segment
raises a WireError with the reason.
"""

import enum
import struct
from dataclasses import dataclass, replace

VERSION = 1
TCP_PORT = 8420
SEGMENT_BYTES = 24
CE_BYTES = 44
RDMA_BYTES = 16
MAX_SEGMENT = 0xFFFF
MAX_DISCRIMINATOR = 16
MAX_SECURITY = 256

_SEGMENT = struct.Struct(">BBHIIIIHH")
_CE = struct.Struct(">HHI16sHH16s")
_RDMA = struct.Struct(">QII")


class Kind(enum.IntEnum):
    """Message types [VI/TCP 3.1]."""

    SEND = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    WRITE = 3
    NOP = 4
    CONNECT_REQUEST = 5
    CONNECT_ACCEPT = 6
    CONNECT_REJECT = 7
    CONNECT_NO_MATCH = 8


NAMES = {
    Kind.SEND: "send",
    Kind.READ_REQUEST: "read-request",
    Kind.READ_RESPONSE: "read-response",
    Kind.WRITE: "write",
    Kind.NOP: "nop",
    Kind.CONNECT_REQUEST: "connect-request",
    Kind.CONNECT_ACCEPT: "accept",
    Kind.CONNECT_REJECT: "reject",
    Kind.CONNECT_NO_MATCH: "no-match",
}

RDMA_KINDS = (Kind.READ_REQUEST, Kind.READ_RESPONSE, Kind.WRITE)
PAYLOAD_KINDS = (Kind.SEND, Kind.WRITE, Kind.READ_RESPONSE)
CONNECTION_KINDS = (
    Kind.CONNECT_REQUEST,
    Kind.CONNECT_ACCEPT,
    Kind.CONNECT_REJECT,
    Kind.CONNECT_NO_MATCH,
)

# Flags [VI/TCP 3.1]
IMMEDIATE = 0x01
END = 0x02
TRANSMIT_ERROR = 0x04

# VI Error Type [VI/TCP 3.1]
NO_ERROR = 0
PROTECTION_ERROR = 1
DESCRIPTOR_ERROR = 2

# IS Error Code
IS_NONE = 0
IS_TRANSPORT = 1
IS_REJECTED = 16
IS_LEVELS = 17
IS_SIZES = 18
IS_NO_ROOM = 19
IS_SECURITY = 20
IS_CHALLENGE = 21
IS_REJECTIONS = range(IS_REJECTED, IS_CHALLENGE + 1)

# Calling Attributes [VI/TCP 3.2]
RELIABLE = 1 << 0
RDMA_WRITE = 1 << 1
RDMA_READ = 1 << 2
FLOW_CONTROL = 1 << 3
PEER_TO_PEER = 1 << 4
LEVEL_SHIFT = 5
LEVEL_MASK = 3 << LEVEL_SHIFT
RESERVED_ATTRIBUTES = 0xFF80

LEVELS = {
    "ud": 0,
    "rd": RELIABLE | 1 << LEVEL_SHIFT,
    "rr": RELIABLE | 2 << LEVEL_SHIFT,
    # As in the draft, without the exact level.
    "reliable": RELIABLE,
}


class WireError(Exception):
    """The peer has sent an invalid segment or message."""


def after(number, count=1, bits=32):
    """Return `number` + `count` modulo 2^`bits`."""
    return (number + count) % (1 << bits)


def distance(start, end, bits=32):
    """Return `end` - `start` modulo 2^`bits`."""
    return (end - start) % (1 << bits)


def kind_name(kind):
    """Return the name of a type, or its number if it is undefined."""
    return NAMES.get(kind, f"type-{kind}")


@dataclass(frozen=True)
class SegmentHeader:
    """Segment header, 24 bytes [VI/TCP 3.1].

    A length of None is filled in by Segment.pack().
    """

    kind: int
    flags: int = END
    length: int | None = None
    offset: int = 0
    immediate: int = 0
    number: int = 0
    ack: int = 0
    posted: int = 0
    vi_error: int = NO_ERROR
    is_error: int = IS_NONE
    version: int = VERSION

    def pack(self):
        """Return the 24 bytes."""
        return _SEGMENT.pack(
            self.version,
            self.kind << 3 | self.flags,
            SEGMENT_BYTES if self.length is None else self.length,
            self.offset,
            self.immediate,
            self.number,
            self.ack,
            self.posted,
            self.vi_error << 8 | self.is_error,
        )

    @classmethod
    def unpack(cls, data):
        """Parse the first 24 bytes of `data` without validation."""
        (version, mixed, length, offset, immediate, number, ack, posted,
         error) = _SEGMENT.unpack_from(data)
        return cls(
            kind=mixed >> 3,
            flags=mixed & 7,
            length=length,
            offset=offset,
            immediate=immediate,
            number=number,
            ack=ack,
            posted=posted,
            vi_error=error >> 8,
            is_error=error & 0xFF,
            version=version,
        )

    def check(self):
        """Raise WireError if the header is invalid by itself [VI/TCP 3.1]."""
        if self.version != VERSION:
            raise WireError(f"Version is {self.version}, not {VERSION}")
        if self.kind not in NAMES:
            raise WireError(f"Type {self.kind} is not defined")
        name = kind_name(self.kind)
        self._check_length(name)
        self._check_flags(name)
        if self.kind not in PAYLOAD_KINDS and self.offset:
            raise WireError(f"{name}: Data Offset is {self.offset}, not 0")
        self._check_error(name)

    def _check_length(self, name):
        least = SEGMENT_BYTES
        most = MAX_SEGMENT
        if self.kind in RDMA_KINDS:
            least += RDMA_BYTES
            if self.kind == Kind.READ_REQUEST:
                most = least
        elif self.kind in (Kind.CONNECT_REQUEST, Kind.CONNECT_ACCEPT) or (
            self.kind == Kind.CONNECT_REJECT and self.is_error == IS_CHALLENGE
        ):
            least += CE_BYTES
            most = least + MAX_SECURITY
        elif self.kind != Kind.SEND:
            most = least
        if not least <= self.length <= most:
            raise WireError(
                f"{name}: Segment Length is {self.length}, "
                f"not {least} to {most}"
            )

    def _check_flags(self, name):
        if self.kind not in PAYLOAD_KINDS and not self.flags & END:
            raise WireError(f"{name}: End of Message is not set")
        if self.flags & IMMEDIATE and self.kind not in (Kind.SEND, Kind.WRITE):
            raise WireError(f"{name}: Immediate Data Valid is set")
        if self.flags & TRANSMIT_ERROR and self.kind not in PAYLOAD_KINDS:
            raise WireError(f"{name}: Transmit Error is set")

    def _check_error(self, name):
        if self.vi_error > DESCRIPTOR_ERROR:
            raise WireError(
                f"{name}: VI Error Type {self.vi_error} is not defined"
            )
        if self.kind == Kind.CONNECT_REJECT:
            allowed = (IS_NONE, *IS_REJECTIONS)
        elif self.kind in CONNECTION_KINDS:
            allowed = (IS_NONE,)
        else:
            allowed = (IS_NONE, IS_TRANSPORT)
        if self.is_error not in allowed:
            raise WireError(
                f"{name}: IS Error Code {self.is_error} has no meaning here"
            )
        if self.vi_error and self.kind in CONNECTION_KINDS:
            raise WireError(f"{name}: VI Error Type is {self.vi_error}, not 0")


@dataclass(frozen=True)
class CeHeader:
    """Connection establishment header, 44 bytes and security [VI/TCP 3.2].

    The two lengths follow the discriminators unless they are given.
    """

    attributes: int
    mtu: int
    calling: bytes = b""
    called: bytes = b""
    read_window: int = 0
    security: bytes = b""
    calling_length: int | None = None
    called_length: int | None = None

    def pack(self):
        """Return the 44 bytes and the Security Information."""
        calling_length = self.calling_length
        if calling_length is None:
            calling_length = len(self.calling)
        called_length = self.called_length
        if called_length is None:
            called_length = len(self.called)
        return _CE.pack(
            self.attributes,
            calling_length,
            self.mtu,
            self.calling,
            self.read_window,
            called_length,
            self.called,
        ) + self.security

    @classmethod
    def unpack(cls, data):
        """Parse and validate `data` as a CE header."""
        if not CE_BYTES <= len(data) <= CE_BYTES + MAX_SECURITY:
            raise WireError(f"CE header: {len(data)} bytes, not 44 to 300")
        (attributes, calling_length, mtu, calling, window, called_length,
         called) = _CE.unpack_from(data)
        header = cls(
            attributes=attributes,
            mtu=mtu,
            calling=_discriminator("Calling", calling, calling_length),
            called=_discriminator("Called", called, called_length),
            read_window=window,
            security=bytes(data[CE_BYTES:]),
        )
        header.check()
        return header

    def check(self):
        """Raise WireError if attributes or MTU are invalid [VI/TCP 3.2]."""
        if self.attributes & RESERVED_ATTRIBUTES:
            raise WireError(
                "CE header: reserved bits in attributes "
                f"0x{self.attributes:04x}"
            )
        if self.exact_level == 3:
            raise WireError("CE header: exact level 3 is not defined")
        if self.exact_level and not self.attributes & RELIABLE:
            raise WireError(
                f"CE header: exact level {self.exact_level} without Reliable"
            )
        if self.mtu == 0:
            raise WireError("CE header: MTU Size is 0")

    @property
    def exact_level(self):
        """0 unspecified, 1 Reliable Delivery, 2 Reliable Reception."""
        return (self.attributes & LEVEL_MASK) >> LEVEL_SHIFT

    @property
    def reliable(self):
        """Whether the bit Reliable is set."""
        return bool(self.attributes & RELIABLE)

    @property
    def needs_acks(self):
        """Whether this side needs Message ACK and VI Error Type.

        At Reliable Delivery the first is undefined and the second No Error,
        both to be ignored [VI/TCP 3.1]; a side without an exact level may
        need them.
        """
        return self.reliable and self.exact_level != 1


def _discriminator(which, field, length):
    """Return the `length` bytes in use of a 16-byte field [VI/TCP 3.2]."""
    if length > MAX_DISCRIMINATOR:
        raise WireError(
            f"CE header: {which} Discriminator Length is {length}, over 16"
        )
    if any(field[length:]):
        raise WireError(
            f"CE header: {which} Discriminator is not 0 after its length"
        )
    return field[:length]


@dataclass(frozen=True)
class RdmaHeader:
    """RDMA header, 16 bytes [VI/TCP 3.2.1, 3.3 in the contents]."""

    address: int
    handle: int
    length: int

    def pack(self):
        """Return the 16 bytes."""
        return _RDMA.pack(self.address, self.handle, self.length)

    @classmethod
    def unpack(cls, data):
        """Parse the first 16 bytes of `data`."""
        return cls(*_RDMA.unpack_from(data))

    def check(self):
        """Raise WireError if the range wraps around the address space."""
        if self.address + self.length > 1 << 64:
            raise WireError(
                f"RDMA header: 0x{self.address:x} + {self.length} is over 2^64"
            )


@dataclass(frozen=True)
class Segment:
    """A complete segment: header, CE or RDMA header, payload [VI/TCP 3]."""

    header: SegmentHeader
    ce: CeHeader | None = None
    rdma: RdmaHeader | None = None
    payload: bytes = b""

    def pack(self):
        """Return the bytes; computes a Segment Length that is None."""
        rest = self.payload
        if self.rdma is not None:
            rest = self.rdma.pack() + rest
        if self.ce is not None:
            rest = self.ce.pack() + rest
        header = self.header
        if header.length is None:
            header = replace(header, length=SEGMENT_BYTES + len(rest))
        return header.pack() + rest

    @classmethod
    def unpack(cls, data):
        """Parse and validate `data` as one segment."""
        if len(data) < SEGMENT_BYTES:
            raise WireError(f"a segment of {len(data)} bytes")
        header = SegmentHeader.unpack(data)
        header.check()
        if header.length != len(data):
            raise WireError(
                f"Segment Length is {header.length}, there are {len(data)}"
            )
        rest = bytes(data[SEGMENT_BYTES:])
        if header.kind in RDMA_KINDS:
            rdma = RdmaHeader.unpack(rest)
            if header.kind != Kind.READ_RESPONSE:
                # A refusal repeats the RDMA header of its request.
                rdma.check()
            return cls(header, rdma=rdma, payload=rest[RDMA_BYTES:])
        if header.kind in CONNECTION_KINDS and rest:
            return cls(header, ce=CeHeader.unpack(rest))
        return cls(header, payload=rest)


class SegmentBuffer:
    """Splits a byte stream into segments."""

    def __init__(self):
        self._data = bytearray()

    def feed(self, data):
        """Add received bytes."""
        self._data += data

    def next(self):
        """Return the next complete segment, or None."""
        if len(self._data) < SEGMENT_BYTES:
            return None
        header = SegmentHeader.unpack(self._data)
        header.check()
        if len(self._data) < header.length:
            return None
        data = bytes(self._data[:header.length])
        del self._data[:header.length]
        return Segment.unpack(data)

    @property
    def pending(self):
        """Number of bytes of an incomplete segment."""
        return len(self._data)
