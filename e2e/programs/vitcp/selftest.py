"""The peer against itself over loopback, and the checks of the format."""

import os
import socket
import subprocess
import sys
import threading
import unittest

sys.dont_write_bytecode = True

import liar  # noqa: E402
import wire  # noqa: E402
from conversation import Conversation  # noqa: E402
from facts import pattern  # noqa: E402
from selftest_rules import Format, Rules  # noqa: E402, F401
from session import Hello, Session  # noqa: E402

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

    def test_immediate_in_any_segment(self):
        for where in ("last", "first", "every"):
            self.pair(
                ["advertise", "expect:0:100:0x7", "expect:1:100",
                 "expect:2:200:0x9", "wait-close:5"],
                ["--immediate", where, "--segment", "30", "recv:1:16",
                 "send:100:7", "send:100", "write:@:@:200:9"],
            )

    def test_bytes_are_looked_at(self):
        reader = ["fill:3:100:50", "advertise", "recv:1:1",
                  "memory:0:0:60", "wait-close:5"]
        script = ["recv:1:16", "write:@:@:60", "send:1"]
        self.pair(reader, script + ["fetch:@+100:@:50:3"])
        for wrong in ("fetch:@+100:@:50:4", "fetch:@+101:@:50:3"):
            server = Server(*reader)
            code, said = client(server, *script, wrong)
            self.assertEqual(code, 1)
            self.assertIn("failed: read 50 bytes", said)
            server.end()
        for wrong in ("expect:1:5:7", "expect:0:5:8", "expect:0:5"):
            server = Server(wrong)
            client(server, "send:5:7")
            self.assertEqual(server.end()[0], 1, wrong)
        server = Server("recv:1:1", "memory:1:0:1")
        client(server, "send:1", "close")
        self.assertIn("failed: the memory is", server.end()[1])

    def test_errors_are_told(self):
        server = Server("--level", "rr", "tell-error:2:0", "wait-close:5")
        code, said = client(
            server, "--level", "rr", "send:5", "expect-error:2:0.5"
        )
        self.assertIn("error vi 2 is 0 of message", said)
        server.end()

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
                            "here", "--level", "rr", "run", name),
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
        known = {"closed", "error", "refused", "response", "accept",
                 "reject", "no-match", "kept", "left"}
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


if __name__ == "__main__":
    unittest.main()
