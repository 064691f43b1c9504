"""A valid VI connection over one TCP connection."""

import collections
import select
import socket
import struct
import time
from dataclasses import dataclass

import connection
import wire
from handshake import Handshake
from common import Failure, describe, report
from wire import Kind

REGION = struct.Struct(">QII")


@dataclass
class ConnectParameters:
    """The local parameters of connection establishment [VI/TCP 3.2]."""

    own: bytes = b""
    called: bytes = b""
    level: str = "rd"
    mtu: int = 32768
    flow_control: bool = False
    peer_to_peer: bool = False
    rdma: int = wire.RDMA_WRITE | wire.RDMA_READ
    read_window: int = 16
    security: bytes = b""

    def ce(self, called=None, mtu=None, security=None):
        """Return the CE header."""
        attributes = wire.LEVELS[self.level] | self.rdma
        if self.flow_control:
            attributes |= wire.FLOW_CONTROL
        if self.peer_to_peer:
            attributes |= wire.PEER_TO_PEER
        return wire.CeHeader(
            attributes=attributes,
            mtu=self.mtu if mtu is None else mtu,
            calling=self.own,
            called=self.called if called is None else called,
            read_window=self.read_window,
            security=self.security if security is None else security,
        )


class Session(Handshake):
    """A VI connection over one TCP connection [VI/TCP 2.2.2.2.2]."""

    def __init__(self, sock, parameters, connection, *, segment=1400, split=0,
                 timeout=10.0, repost=False, memory=0, immediate_in="last"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self.sock = sock
        self.parameters = parameters
        self.connection = connection
        self.segment = segment
        self.split = split
        self.timeout = timeout
        self.repost = repost
        self.immediate_in = immediate_in
        self.memory = bytearray(memory)
        self.base = 0x10000
        self.handle = 0x4D454D
        self.buffer = wire.SegmentBuffer()
        self.ended = False
        self.inbox = collections.deque()
        self.answers = collections.deque()
        self.region = None
        self.serial = 0
        self.keyed = None
        self.accepted = None
        self._shut = False
        self._ack_due = False
        self._ack_wanted = None

    # bytes

    def transmit(self, data):
        """Send bytes, in pieces with --split; receives meanwhile."""
        view = memoryview(data)
        while view:
            piece = view[:self.split] if self.split else view
            try:
                view = view[self.sock.send(piece):]
            except BlockingIOError:
                deadline = time.monotonic() + self.timeout
                wanted = [] if self.ended else [self.sock]
                ready = select.select(wanted, [self.sock], [], self.timeout)
                if ready[0]:
                    self.receive_bytes()
                elif time.monotonic() >= deadline:
                    raise Failure(
                        f"send timed out after {self.timeout} s"
                    ) from None
            except OSError as error:
                raise Failure(f"cannot send: {error}") from None

    def receive_bytes(self):
        """Receive available bytes; return whether there were any."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if data:
            self.buffer.feed(data)
        else:
            self.ended = True
        return True

    def put(self, kind, ce=None, rdma=None, payload=b"", **fields):
        """Send one segment."""
        header = self.connection.header(kind, **fields)
        self._ack_due = False
        self.transmit(wire.Segment(header, ce, rdma, payload).pack())
        return header

    # incoming messages

    def wait_for(self, done, seconds, what):
        """Process segments until `done()`; Failure after `seconds`."""
        deadline = time.monotonic() + seconds
        while not done():
            segment = self.buffer.next()
            if segment is not None:
                self._take(segment)
                continue
            if self.ended:
                if self.buffer.pending:
                    raise Failure(
                        f"closed inside of a segment, {self.buffer.pending} "
                        "bytes are left"
                    )
                raise Failure(f"closed by the peer, waiting for {what}")
            if self.receive_bytes():
                continue
            self.flush()
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failure(f"waited {seconds} s for {what}")
            if select.select([self.sock], [], [], left)[0]:
                self.receive_bytes()

    def _take(self, segment):
        message = self.connection.check(segment)
        if self.connection.error is not None:
            vi_error, is_error, number = self.connection.error
            report(f"error vi {vi_error} is {is_error} of message {number}")
        if message is None:
            return
        if message.kind in wire.CONNECTION_KINDS:
            self.answers.append(message)
            return
        if message.kind == Kind.READ_RESPONSE:
            self.answers.append(message)
            return
        if message.failed:
            raise Failure(f"message {message.number} has Transmit Error")
        if message.kind == Kind.NOP:
            return
        self._ack_due = self.connection.sends_acks
        if message.kind == Kind.WRITE:
            self._written(message)
        elif message.kind == Kind.READ_REQUEST and not self._shut:
            self.respond(message)
        if message.consumes:
            if self.region is None:
                self.region = message.payload[:REGION.size]
            if self.repost:
                self.connection.posted += 1
            self.inbox.append(message)

    def _range(self, rdma):
        """Return the range of `rdma` in the local memory, or None."""
        start = rdma.address - self.base
        end = start + rdma.length
        if rdma.handle != self.handle or start < 0 or end > len(self.memory):
            return None
        return slice(start, end)

    def _written(self, message):
        where = self._range(message.rdma)
        if where is None:
            raise Failure(f"RDMA Write outside of the memory: {message.rdma}")
        self.memory[where] = message.payload
        report(f"written {describe(message.payload)}")

    def respond(self, message):
        """Answer an RDMA Read Request under its number [VI/TCP 3.1]."""
        where = self._range(message.rdma)
        if where is None:
            self.put(
                Kind.READ_RESPONSE, rdma=message.rdma, number=message.number,
                flags=wire.END | wire.TRANSMIT_ERROR,
            )
            report(f"refused {message.rdma.length} bytes")
            return
        data = bytes(self.memory[where])
        self._segments(
            Kind.READ_RESPONSE, data, message.rdma, number=message.number
        )
        report(f"answered {describe(data)}")

    def flush(self):
        """Acknowledge and advertise receives by a NOP [VI/TCP 3.1]."""
        if self.connection.phase is not connection.Phase.CONNECTED:
            return
        if self.ended or self._shut:
            return
        news = self.connection.flow_control and (
            self.connection.posted != self.connection.advertised
        )
        if self._ack_due or news:
            self.put(Kind.NOP)

    # outgoing messages

    def _segments(self, kind, data, rdma=None, immediate=None, **fields):
        """Send a message in segments with one number [VI/TCP 3.1]."""
        offset = 0
        while True:
            part = data[offset:offset + self.segment]
            last = offset + len(part) == len(data)
            flags = wire.END if last else 0
            value = 0
            placements = {"last": last, "first": not offset, "every": True}
            if immediate is not None and placements[self.immediate_in]:
                flags |= wire.IMMEDIATE
                value = immediate
            header = self.put(
                kind, rdma=rdma, payload=part, flags=flags, offset=offset,
                immediate=value, **fields,
            )
            fields["number"] = header.number
            if last:
                return header.number
            offset += len(part)

    def _message(self, kind, data, rdma=None, immediate=None):
        if len(data) > self.connection.mtu:
            raise Failure(
                f"{len(data)} bytes, MTU Size is {self.connection.mtu}"
            )
        if kind == Kind.SEND or immediate is not None:
            if self.connection.flow_control:
                self.wait_for(
                    lambda: self.connection.credits, self.timeout, "a credit"
                )
            used = wire.after(self.connection.used_locally, 1, 16)
            self.connection.used_locally = used
        self._ack_wanted = self._segments(kind, data, rdma, immediate)

    def send(self, data, immediate=None):
        """Send one message."""
        self._message(Kind.SEND, data, immediate=immediate)

    def write(self, address, handle, data, immediate=None):
        """RDMA Write one message."""
        rdma = wire.RdmaHeader(address, handle, len(data))
        self._message(Kind.WRITE, data, rdma, immediate)

    def read(self, address, handle, length):
        """RDMA Read; return the bytes, None if refused."""
        rdma = wire.RdmaHeader(address, handle, length)
        self.connection.reads.append((self.connection.next_number, rdma))
        self._ack_wanted = self.put(Kind.READ_REQUEST, rdma=rdma).number
        message = self.take_answer("a read response")
        return None if message.failed else message.payload

    def receive(self):
        """Return the next message that used a receive descriptor."""
        self.wait_for(lambda: self.inbox, self.timeout, "a message")
        return self.inbox.popleft()

    def acknowledged(self):
        """Whether the peer has acknowledged everything except NOPs."""
        wanted = self._ack_wanted
        if not self.connection.receives_acks or wanted is None:
            return True
        return wire.distance(wanted, self.connection.acked) < 1 << 31

    def wait_acknowledged(self):
        """Wait until the peer has acknowledged everything except NOPs."""
        self.wait_for(
            self.acknowledged, self.timeout,
            f"the acknowledgement of message {self._ack_wanted}",
        )

    # close

    def wait_close(self, seconds):
        """Expect the peer to close."""
        self._drain(seconds)
        self.sock.close()

    def _drain(self, seconds):
        self.wait_for(
            lambda: self.ended and not self.buffer.pending, seconds,
            "the close by the peer",
        )

    def close(self):
        """Close, then wait for the peer to follow [2.2.2.2.2]."""
        phase = self.connection.phase
        if phase is connection.Phase.CONNECTED and not self.ended:
            self.flush()
            self.wait_acknowledged()
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self._shut = True
        self._drain(self.timeout)
        self.sock.close()
