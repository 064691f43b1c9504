"""Tests of wire format and protocol rules; run by selftest.py."""

import unittest
from dataclasses import replace

import wire
from connection import Connection
from session import ConnectParameters
from wire import (
    CeHeader, Kind, RdmaHeader, Segment, SegmentHeader, WireError,
)


class Format(unittest.TestCase):
    """Packing, parsing and validation of headers."""

    def test_segment_header(self):
        header = SegmentHeader(
            kind=Kind.SEND, flags=7, length=0x1234, offset=0x01020304,
            immediate=0x11121314, number=0x21222324, ack=0x31323334,
            posted=0x4142, vi_error=2, is_error=1,
        )
        self.assertEqual(
            header.pack().hex(),
            "01071234010203041112131421222324313233344142" "0201",
        )
        self.assertEqual(SegmentHeader.unpack(header.pack()), header)
        for kind in range(32):
            for flags in range(8):
                header = SegmentHeader(kind=kind, flags=flags, length=24)
                self.assertEqual(header.pack()[1], kind * 8 + flags)
                self.assertEqual(SegmentHeader.unpack(header.pack()), header)

    def test_ce_header(self):
        header = CeHeader(
            attributes=0x002F, mtu=0x00010002, calling=b"abc",
            called=b"d" * 16, read_window=0x0506, security=b"sec",
        )
        self.assertEqual(
            header.pack().hex(),
            "002f000300010002" + b"abc".hex() + "00" * 13 + "05060010"
            + "64" * 16 + b"sec".hex(),
        )
        self.assertEqual(CeHeader.unpack(header.pack()), header)

    def test_rdma_header(self):
        header = RdmaHeader(0x0102030405060708, 0x11121314, 0x21222324)
        self.assertEqual(
            header.pack().hex(), "01020304050607081112131421222324"
        )
        self.assertEqual(RdmaHeader.unpack(header.pack()), header)

    def test_segments_in_pieces(self):
        ce = CeHeader(wire.LEVELS["rd"], 100, b"a", b"b")
        rdma = RdmaHeader(1, 2, 3)
        segments = [
            Segment(SegmentHeader(Kind.CONNECT_REQUEST), ce=ce),
            Segment(SegmentHeader(Kind.SEND), payload=b"payload"),
            Segment(SegmentHeader(Kind.WRITE), rdma=rdma, payload=b"abc"),
            Segment(SegmentHeader(Kind.READ_REQUEST), rdma=rdma),
            Segment(SegmentHeader(Kind.NOP)),
        ]
        stream = b"".join(segment.pack() for segment in segments)
        for size in (1, 7, 24, 1000):
            buffer = wire.SegmentBuffer()
            got = []
            for start in range(0, len(stream), size):
                buffer.feed(stream[start:start + size])
                while (segment := buffer.next()) is not None:
                    got.append(segment)
            self.assertEqual([s.payload for s in got],
                             [s.payload for s in segments])
            self.assertEqual([s.rdma for s in got], [s.rdma for s in segments])
            self.assertEqual(got[0].ce, ce)
            self.assertEqual(buffer.pending, 0)

    def wrong(self, text, data):
        """Expect a WireError with `text`."""
        with self.assertRaisesRegex(WireError, text):
            buffer = wire.SegmentBuffer()
            buffer.feed(data.pack() if isinstance(data, Segment) else data)
            if buffer.next() is None:
                raise WireError("not whole")

    def test_header_checks(self):
        def nop(**fields):
            return Segment(SegmentHeader(Kind.NOP, **fields))

        self.wrong("Version is 2", nop(version=2))
        self.wrong("Segment Length is 23", nop(length=23))
        self.wrong("Segment Length is 25", nop(length=25))
        self.wrong("End of Message", nop(flags=0))
        self.wrong("Immediate Data", nop(flags=3))
        self.wrong("Transmit Error", nop(flags=6))
        self.wrong("Data Offset is 1", nop(offset=1))
        self.wrong("VI Error Type 3", nop(vi_error=3))
        self.wrong("IS Error Code 16", nop(is_error=16))
        for kind in range(9, 32):
            self.wrong("not defined", Segment(SegmentHeader(kind)))
        self.wrong("Segment Length is 24",
                   Segment(SegmentHeader(Kind.READ_REQUEST)))
        self.wrong("Segment Length is 24",
                   Segment(SegmentHeader(Kind.CONNECT_REQUEST)))

    def test_ce_checks(self):
        def request(**fields):
            values = {"attributes": 0x21, "mtu": 1, "calling": b"abc"}
            ce = CeHeader(**(values | fields))
            return Segment(SegmentHeader(Kind.CONNECT_REQUEST), ce=ce)

        self.wrong("Calling Discriminator Length is 17",
                   request(calling_length=17))
        self.wrong("Called Discriminator Length is 17",
                   request(called_length=17))
        self.wrong("not 0 after", request(calling_length=2))
        self.wrong("MTU Size is 0", request(mtu=0))
        self.wrong("reserved bits", request(attributes=0x0121))
        self.wrong("exact level 3", request(attributes=0x61))
        self.wrong("without Reliable", request(attributes=0x20))
        self.wrong("Segment Length is 325", request(security=bytes(257)))

    def test_rdma_checks(self):
        rdma = RdmaHeader((1 << 64) - 8, 1, 9)
        self.wrong("over 2\\^64", Segment(
            SegmentHeader(Kind.READ_REQUEST), rdma=rdma))


class Rules(unittest.TestCase):
    """The rules across segments."""

    def setUp(self):
        self.connection = Connection(False, number=100, posted=2)
        self.parameters = ConnectParameters(own=b"a", called=b"b", level="rr",
                                            flow_control=True)
        self.ce = self.parameters.ce()
        self.receive(Kind.CONNECT_REQUEST, 7, ce=self.ce)
        self.connection.header(Kind.CONNECT_ACCEPT)
        self.connection.establish(self.ce, self.ce, 32)

    def receive(self, kind, number, payload=b"", rdma=None, ce=None, **fields):
        """Process a segment of the peer."""
        fields.setdefault("ack", 100)
        fields.setdefault("posted", 0xFFFE)
        header = SegmentHeader(kind, number=number, **fields)
        segment = Segment(header, ce, rdma, payload)
        return self.connection.check(Segment.unpack(segment.pack()))

    def wrong(self, text, *words, **fields):
        """Expect a WireError with `text`."""
        with self.assertRaisesRegex(WireError, text):
            self.receive(*words, **fields)

    def test_numbers(self):
        self.receive(Kind.NOP, 8)
        self.wrong("Number is 8, not 9", Kind.NOP, 8)
        self.wrong("Number is 10, not 9", Kind.NOP, 10)

    def test_offsets(self):
        self.wrong("Data Offset is 4, not 0", Kind.SEND, 8, offset=4)
        self.setUp()
        self.receive(Kind.SEND, 8, b"1234", flags=0)
        self.wrong("Data Offset is 5, not 4", Kind.SEND, 8, b"5", offset=5)

    def test_inside(self):
        for kind, number in ((Kind.SEND, 9), (Kind.NOP, 8), (Kind.NOP, 9)):
            self.setUp()
            self.receive(Kind.SEND, 8, b"1234", flags=0)
            self.wrong("inside of send 8", kind, number)

    def test_acks(self):
        self.wrong("Message ACK is 101", Kind.NOP, 8, ack=101)
        self.setUp()
        self.wrong("Message ACK is 99", Kind.NOP, 8, ack=99)
        self.setUp()
        self.wrong("which was acknowledged", Kind.NOP, 8, vi_error=1)

    def test_acks_at_reliable_delivery(self):
        ce = ConnectParameters(own=b"a", called=b"b").ce()
        self.connection.establish(ce, ce, 32)
        self.receive(Kind.NOP, 8, ack=99)
        self.wrong("VI Error Type is 1", Kind.NOP, 9, ack=100, vi_error=1)

    def test_error_ends(self):
        self.connection.header(Kind.SEND)
        self.receive(Kind.NOP, 8, ack=101, vi_error=1)
        self.assertEqual(self.connection.error, (1, 0, 101))
        self.wrong("waiting for the close", Kind.NOP, 9)

    def test_posted(self):
        self.receive(Kind.NOP, 8, posted=0xFFFF)
        self.wrong("from 65535 back to 65534", Kind.NOP, 9, posted=0xFFFE)
        self.setUp()
        self.connection.used_locally = 0xFFFE
        self.receive(Kind.NOP, 8, posted=1)
        self.assertEqual(self.connection.credits, 3)

    def test_credits(self):
        self.receive(Kind.SEND, 8)
        self.receive(Kind.SEND, 9)
        self.wrong("without a credit", Kind.SEND, 10)

    def test_write(self):
        rdma = RdmaHeader(0x1000, 1, 8)
        self.receive(Kind.WRITE, 8, b"1234", rdma, flags=0)
        self.wrong("changes in mid-message", Kind.WRITE, 8, b"5678",
                   replace(rdma, handle=2), offset=4)
        self.setUp()
        self.wrong("ends at 4", Kind.WRITE, 8, b"1234", rdma)
        self.setUp()
        self.wrong("9 bytes, RDMA Length", Kind.WRITE, 8, b"123456789", rdma)

    def test_responses(self):
        rdma = RdmaHeader(0x1000, 1, 8)
        self.wrong("no read request", Kind.READ_RESPONSE, 5, bytes(8), rdma)
        for text, number, header, payload in (
            ("request has 101", 102, rdma, bytes(8)),
            ("not that of the request", 101, replace(rdma, length=9),
             bytes(9)),
            ("9 bytes, RDMA Length", 101, rdma, bytes(9)),
            ("ends at 7", 101, rdma, bytes(7)),
        ):
            self.setUp()
            self.connection.header(Kind.READ_REQUEST)
            self.connection.reads.append((101, rdma))
            self.wrong(text, Kind.READ_RESPONSE, number, payload, header)

    def test_interleaved_response(self):
        rdma = RdmaHeader(0x1000, 1, 8)
        self.connection.header(Kind.READ_REQUEST)
        self.connection.reads.append((101, rdma))
        self.receive(Kind.SEND, 8, b"12", flags=0)
        self.receive(Kind.READ_RESPONSE, 101, bytes(4), rdma, flags=0)
        self.assertEqual(
            self.receive(Kind.SEND, 8, b"34", offset=2).payload, b"1234"
        )
        message = self.receive(
            Kind.READ_RESPONSE, 101, bytes(4), rdma, offset=4
        )
        self.assertEqual(message.payload, bytes(8))
        self.assertEqual(self.connection.received_complete, 8)

    def test_mtu(self):
        self.wrong("33 bytes, MTU Size is 32", Kind.SEND, 8, bytes(33))
        for kind in (Kind.WRITE, Kind.READ_REQUEST):
            self.setUp()
            self.wrong("Length is 33, MTU Size is 32", kind, 8,
                       rdma=RdmaHeader(0x1000, 1, 33))

    def test_accept(self):
        def answer(number=5, **fields):
            connection = Connection(True, number=50)
            connection.propose(self.ce)
            connection.header(Kind.CONNECT_REQUEST)
            ce = ConnectParameters(own=b"b", called=b"a", level="rr").ce()
            header = SegmentHeader(Kind.CONNECT_ACCEPT, number=number,
                                   ack=fields.pop("ack", 50))
            segment = Segment(header, ce=replace(ce, **fields))
            connection.check(Segment.unpack(segment.pack()))
            return connection

        self.assertFalse(answer().flow_control)
        self.assertEqual(answer(mtu=7).mtu, 7)
        for text, fields in (
            ("Message ACK is 51", {"ack": 51}),
            ("Calling Discriminator", {"calling": b"x"}),
            ("Called Discriminator", {"called": b"x"}),
            ("40000", {"mtu": 40000}),
            ("exact level", {"attributes": wire.LEVELS["rd"]}),
            ("Reliable is not", {"attributes": 0}),
        ):
            with self.assertRaisesRegex(WireError, text):
                answer(**fields)
