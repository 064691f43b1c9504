"""The peer against itself over loopback, and the checks of the format."""

import os
import socket
import subprocess
import sys
import threading
import unittest
from dataclasses import replace

sys.dont_write_bytecode = True

import liar  # noqa: E402
import wire  # noqa: E402
from conversation import Conversation  # noqa: E402
from session import Hello, Session, pattern  # noqa: E402
from wire import (  # noqa: E402
    CeHeader, Kind, RdmaHeader, Segment, SegmentHeader, WireError,
)

HERE = os.path.dirname(os.path.abspath(__file__))
ENVIRONMENT = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")


def command(*words):
    """Return the command line of the peer or the liar."""
    return [sys.executable, os.path.join(HERE, words[0]), *words[1:]]


class Server:
    """A server in a process of its own; knows its port."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            command("peer.py", "server", "--port", "0", "--disc", "here",
                    *words),
            stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )
        self.port = self.process.stdout.readline().split()[1]

    def end(self):
        """Return exit code and what was printed."""
        text = self.process.communicate(timeout=15)[0]
        return self.process.returncode, text


def client(server, *words):
    """Run a client; return exit code and what was printed."""
    done = subprocess.run(
        command("peer.py", "client", "--port", server.port, "--called",
                "here", *words),
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=15,
    )
    return done.returncode, done.stdout


class Programs(unittest.TestCase):
    """Client and server as they are called."""

    def pair(self, server_words, client_words):
        """Run both; both are to succeed; return what they printed."""
        server = Server(*server_words)
        code, said = client(server, *client_words)
        server_code, server_said = server.end()
        both = f"client:\n{said}server:\n{server_said}"
        self.assertEqual((code, server_code), (0, 0), both)
        return said, server_said

    def test_sends_in_pieces(self):
        for split in ("1", "7", "0"):
            for level in ("ud", "rd", "rr"):
                with self.subTest(split=split, level=level):
                    both = ["--split", split, "--level", level]
                    said, server_said = self.pair(
                        both + ["recv:3", "send:5:0x12345678"],
                        both + ["--segment", "64", "send:0", "send:200:7",
                                "send:64", "recv:1:5"],
                    )
                    self.assertIn("immediate 0x12345678", said)
                    self.assertIn("received 200 bytes crc32", server_said)
                    self.assertIn("immediate 0x00000007", server_said)

    def test_echo(self):
        self.pair(["reflect:50"], ["echo:50:10000"])

    def test_both_ways_at_once(self):
        script = ["sends:300:32768", "recv:300:32768"]
        self.pair(script, ["--segment", "65495"] + script)

    def test_credits(self):
        both = ["--flow-control", "--posted", "3"]
        said, _ = self.pair(
            both + ["--repost", "recv:400:9"], both + ["sends:400:9"]
        )
        self.assertIn("flow-control on posted 3", said)
        self.pair(both + ["recv:3", "post:2", "recv:2"], both + ["sends:5:9"])

    def test_no_credit(self):
        both = ["--flow-control", "--posted", "3", "--timeout", "0.5"]
        server = Server(*both, "wait-close:5")
        code, said = client(server, *both, "sends:4:9")
        self.assertEqual(code, 1)
        self.assertIn("for a credit", said)
        server.end()

    def test_rdma(self):
        for level in ("ud", "rd"):
            said, server_said = self.pair(
                ["--level", level, "advertise", "recv:1:70", "wait-close:5"],
                ["--level", level, "write:@:@:5000", "read:@:@:5000",
                 "verify:@+8192:@:30000", "write:@:@:70:9", "recv:1:16",
                 "refused:@:1:8", "refused:0x7fff0000:@:8", "read:@:@:0"],
            )
            self.assertIn("written 5000 bytes", server_said)
            self.assertIn("immediate 0x00000009", server_said)
            crc = said.split("wrote 5000 bytes crc32 ")[1].split()[0]
            self.assertIn(f"read 5000 bytes crc32 {crc}", said)

    def test_answers(self):
        for answer in ("reject", "no-match", "close"):
            with self.subTest(answer=answer):
                self.pair(["--answer", answer], ["--expect", answer])
        server = Server("--answer", "silence")
        code, said = client(server, "--timeout", "0.3")
        self.assertEqual(code, 1)
        self.assertIn("answer to the Connect Request", said)
        self.assertEqual(server.end()[0], 0)

    def test_challenge(self):
        said, server_said = self.pair(
            ["--challenge", "0102", "recv:1"], ["--respond", "0a", "send:1"]
        )
        self.assertIn("challenge 0102", said)
        self.assertIn("response 0a", server_said)

    def test_mtu(self):
        said, _ = self.pair(["--mtu", "100"], ["--mtu", "200"])
        self.assertIn("connected mtu 100 ", said)
        server = Server("--mtu", "100", "--no-negotiate")
        code, said = client(server, "--mtu", "200", "--expect", "reject")
        self.assertEqual((code, said.split("\n")[0]), (0, "reject 18"))
        self.assertEqual(server.end()[0], 1)

    def test_lies_are_seen(self):
        for name, text in (
            ("version-2", "Version is 2"),
            ("number-skipped", "Message Number is"),
            ("ack-never-sent", "Message ACK is"),
            ("write-changes-handle", "changes in mid-message"),
            ("interleave-send", "inside of send"),
            ("connected-accept", "accept while connected"),
            ("before-connect-send", "send while awaiting"),
            ("mtu-0", "MTU Size is 0"),
            ("close-mid-payload", "closed inside of a segment"),
            ("send-longer-than-mtu", "MTU Size is 32768"),
            ("garbage-instead", "failed: "),
        ):
            with self.subTest(name=name):
                server = Server("--level", "rr", "wait-close:5")
                done = subprocess.run(
                    command("liar.py", "--port", server.port, "--called",
                            "here", "--level", "rr", "run", name, "--check"),
                    stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
                    timeout=15,
                )
                code, said = server.end()
                self.assertEqual(done.returncode, 0, done.stdout + said)
                self.assertIn(f"{name}: closed", done.stdout)
                self.assertEqual(code, 1)
                self.assertIn(text, said)

    def test_lies_of_the_server(self):
        for name, text in (
            ("answer-ack-wrong", "Message ACK is"),
            ("answer-mtu-larger", "was proposed"),
            ("answer-calling-other", "Calling Discriminator is"),
            ("answer-with-request", "connect-request while awaiting"),
            ("answer-close-half", "closed inside of a segment"),
            ("number-skipped", "Message Number is"),
            ("response-longer", "RDMA Length is"),
            ("response-unasked", "nothing was asked for"),
        ):
            with self.subTest(name=name):
                process = subprocess.Popen(
                    command("liar.py", "--port", "0", "--level", "rr", "serve",
                            name, "--check"),
                    stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
                )
                server = Server.__new__(Server)
                server.process = process
                server.port = process.stdout.readline().split()[1]
                script = ["wait-close:5"]
                if name == "response-longer":
                    script = ["read:1:1:8"]
                code, said = client(server, "--level", "rr", *script)
                liar_code, liar_said = server.end()
                self.assertEqual(liar_code, 0, liar_said + said)
                self.assertEqual(code, 1)
                self.assertIn(text, said)

    def test_lies_have_outcomes(self):
        known = {"closed", "error", "refused", "accept", "reject",
                 "no-match", "kept"}
        for entry in liar.LIES.values():
            for level in wire.LEVELS:
                expected = entry.expected(level)
                self.assertLessEqual(set(expected), known, entry.name)
                self.assertTrue(expected, entry.name)


class Wrap(unittest.TestCase):
    """Counters that run over their end."""

    def run_wrap(self, flow_control, number):
        """65 536 - 20 used already, then 60 messages one way."""
        used = 0x10000 - 20
        near_hello = Hello(b"a", b"b", flow_control=flow_control)
        far_hello = Hello(b"b", b"a", flow_control=flow_control)
        wanted = [pattern(index, 10) for index in range(60)]
        got = []
        said = []

        def serve():
            with listener:
                sock = listener.accept()[0]
            talk = Conversation(False, number, used + 8, used)
            session = Session(sock, far_hello, talk, repost=True)
            with sock:
                session.accept(session.request())
                got.extend(session.receive().payload for _ in wanted)
                session.close()
            said.append(talk.posted)

        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=serve)
        thread.start()
        talk = Conversation(True, number, 5, used)
        with socket.create_connection(listener.getsockname()) as sock:
            session = Session(sock, near_hello, talk)
            self.assertEqual(session.connect(), "accept")
            for data in wanted:
                session.send(data)
            session.wait_acknowledged()
            session.wait_close(5)
        thread.join()
        self.assertEqual(got, wanted)
        self.assertEqual(said, [used + 68])
        self.assertEqual(talk.used_by_us, 40)
        if flow_control:
            self.assertLess(talk.other_posted, 0x8000)

    def test_posted_wraps(self):
        self.run_wrap(True, 5)

    def test_numbers_wrap(self):
        self.run_wrap(False, 0xFFFFFFF0)
        self.run_wrap(True, 0xFFFFFFF0)


class Format(unittest.TestCase):
    """Headers there and back; what is wrong is said."""

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
            attributes=0x00AF, mtu=0x00010002, calling=b"abc",
            called=b"d" * 16, read_window=0x0506, security=b"sec",
        )
        self.assertEqual(
            header.pack().hex(),
            "00af000300010002" + b"abc".hex() + "00" * 13 + "05060010"
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
        """Expect `text` of what is said about a segment."""
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
        self.wrong("not 0 behind", request(calling_length=2))
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
    """The rules between segments."""

    def setUp(self):
        self.talk = Conversation(False, number=100, posted=2)
        self.hello = Hello(own=b"a", called=b"b", level="rr",
                           flow_control=True)
        self.ce = self.hello.ce()
        self.say(Kind.CONNECT_REQUEST, 7, ce=self.ce)
        self.talk.header(Kind.CONNECT_ACCEPT)
        self.talk.establish(self.ce, self.ce, 32)

    def say(self, kind, number, payload=b"", rdma=None, ce=None, **fields):
        """Let the other side say a segment."""
        fields.setdefault("ack", 100)
        fields.setdefault("posted", 0xFFFE)
        header = SegmentHeader(kind, number=number, **fields)
        segment = Segment(header, ce, rdma, payload)
        return self.talk.check(Segment.unpack(segment.pack()))

    def wrong(self, text, *words, **fields):
        """Expect `text` of what is said about a segment."""
        with self.assertRaisesRegex(WireError, text):
            self.say(*words, **fields)

    def test_numbers(self):
        self.say(Kind.NOP, 8)
        self.wrong("Number is 8, not 9", Kind.NOP, 8)
        self.wrong("Number is 10, not 9", Kind.NOP, 10)

    def test_offsets(self):
        self.wrong("Data Offset is 4, not 0", Kind.SEND, 8, offset=4)
        self.setUp()
        self.say(Kind.SEND, 8, b"1234", flags=0)
        self.wrong("Data Offset is 5, not 4", Kind.SEND, 8, b"5", offset=5)

    def test_inside(self):
        for kind, number in ((Kind.SEND, 9), (Kind.NOP, 8), (Kind.NOP, 9)):
            self.setUp()
            self.say(Kind.SEND, 8, b"1234", flags=0)
            self.wrong("inside of send 8", kind, number)

    def test_acks(self):
        self.wrong("Message ACK is 101", Kind.NOP, 8, ack=101)
        self.setUp()
        self.wrong("Message ACK is 99", Kind.NOP, 8, ack=99)
        self.setUp()
        self.wrong("which was acknowledged", Kind.NOP, 8, vi_error=1)

    def test_acks_at_reliable_delivery(self):
        ce = Hello(own=b"a", called=b"b").ce()
        self.talk.establish(ce, ce, 32)
        self.say(Kind.NOP, 8, ack=99)
        self.wrong("VI Error Type is 1", Kind.NOP, 9, ack=100, vi_error=1)

    def test_error_ends(self):
        self.talk.header(Kind.SEND)
        self.say(Kind.NOP, 8, ack=101, vi_error=1)
        self.assertEqual(self.talk.error, (1, 0, 101))
        self.wrong("to be closed", Kind.NOP, 9)

    def test_posted(self):
        self.say(Kind.NOP, 8, posted=0xFFFF)
        self.wrong("from 65535 back to 65534", Kind.NOP, 9, posted=0xFFFE)
        self.setUp()
        self.talk.used_by_us = 0xFFFE
        self.say(Kind.NOP, 8, posted=1)
        self.assertEqual(self.talk.credits, 3)

    def test_credits(self):
        self.say(Kind.SEND, 8)
        self.say(Kind.SEND, 9)
        self.wrong("without a credit", Kind.SEND, 10)

    def test_write(self):
        rdma = RdmaHeader(0x1000, 1, 8)
        self.say(Kind.WRITE, 8, b"1234", rdma, flags=0)
        self.wrong("changes in mid-message", Kind.WRITE, 8, b"5678",
                   replace(rdma, handle=2), offset=4)
        self.setUp()
        self.wrong("ends at 4", Kind.WRITE, 8, b"1234", rdma)
        self.setUp()
        self.wrong("9 bytes, RDMA Length", Kind.WRITE, 8, b"123456789", rdma)

    def test_responses(self):
        rdma = RdmaHeader(0x1000, 1, 8)
        self.wrong("nothing was asked", Kind.READ_RESPONSE, 5, bytes(8), rdma)
        for text, number, header, payload in (
            ("request has 101", 102, rdma, bytes(8)),
            ("not that of the request", 101, replace(rdma, length=9),
             bytes(9)),
            ("9 bytes, RDMA Length", 101, rdma, bytes(9)),
            ("ends at 7", 101, rdma, bytes(7)),
        ):
            self.setUp()
            self.talk.header(Kind.READ_REQUEST)
            self.talk.reads.append((101, rdma))
            self.wrong(text, Kind.READ_RESPONSE, number, payload, header)

    def test_interleaved_response(self):
        rdma = RdmaHeader(0x1000, 1, 8)
        self.talk.header(Kind.READ_REQUEST)
        self.talk.reads.append((101, rdma))
        self.say(Kind.SEND, 8, b"12", flags=0)
        self.say(Kind.READ_RESPONSE, 101, bytes(4), rdma, flags=0)
        self.assertEqual(
            self.say(Kind.SEND, 8, b"34", offset=2).payload, b"1234"
        )
        message = self.say(Kind.READ_RESPONSE, 101, bytes(4), rdma, offset=4)
        self.assertEqual(message.payload, bytes(8))
        self.assertEqual(self.talk.heard_whole, 8)

    def test_mtu(self):
        self.wrong("33 bytes, MTU Size is 32", Kind.SEND, 8, bytes(33))
        for kind in (Kind.WRITE, Kind.READ_REQUEST):
            self.setUp()
            self.wrong("Length is 33, MTU Size is 32", kind, 8,
                       rdma=RdmaHeader(0x1000, 1, 33))

    def test_accept(self):
        def answer(number=5, **fields):
            talk = Conversation(True, number=50)
            talk.propose(self.ce)
            talk.header(Kind.CONNECT_REQUEST)
            ce = Hello(own=b"b", called=b"a", level="rr").ce()
            header = SegmentHeader(Kind.CONNECT_ACCEPT, number=number,
                                   ack=fields.pop("ack", 50))
            segment = Segment(header, ce=replace(ce, **fields))
            talk.check(Segment.unpack(segment.pack()))
            return talk

        self.assertFalse(answer().flow_control)
        self.assertEqual(answer(mtu=7).mtu, 7)
        for text, fields in (
            ("Message ACK is 51", {"ack": 51}),
            ("Calling Discriminator", {"calling": b"x"}),
            ("Called Discriminator", {"called": b"x"}),
            ("40000", {"mtu": 40000}),
            ("not to be negotiated", {"mtu": 7, "attributes": 0x41}),
            ("exact level", {"attributes": wire.LEVELS["rd"]}),
            ("Reliable is not", {"attributes": 0}),
        ):
            with self.assertRaisesRegex(WireError, text):
                answer(**fields)


if __name__ == "__main__":
    unittest.main()
