"""Tests of the Python implementation against itself over loopback."""

import os
import socket
import subprocess
import sys
import threading
import unittest

sys.dont_write_bytecode = True

import malformed  # noqa: E402
import wire  # noqa: E402
from connection import Connection  # noqa: E402
from common import pattern  # noqa: E402
from selftest_rules import Format, Rules  # noqa: E402, F401
from session import ConnectParameters, Session  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ENVIRONMENT = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")


def command(*words):
    """Return the command line of one of the programs."""
    return [sys.executable, os.path.join(HERE, words[0]), *words[1:]]


class Server:
    """A server process and its port."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            command("peer.py", "server", "--port", "0", "--disc", "here",
                    *words),
            stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )
        self.port = self.process.stdout.readline().split()[1]

    def end(self):
        """Return exit code and output."""
        text = self.process.communicate(timeout=15)[0]
        return self.process.returncode, text


def client(server, *words):
    """Run a client; return exit code and output."""
    done = subprocess.run(
        command("peer.py", "client", "--port", server.port, "--called",
                "here", *words),
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=15,
    )
    return done.returncode, done.stdout


class Programs(unittest.TestCase):
    """Client and server processes."""

    def pair(self, server_words, client_words):
        """Run both, which must succeed; return their outputs."""
        server = Server(*server_words)
        code, output = client(server, *client_words)
        server_code, server_output = server.end()
        both = f"client:\n{output}server:\n{server_output}"
        self.assertEqual((code, server_code), (0, 0), both)
        return output, server_output

    def test_simultaneous_sends(self):
        script = ["sends:300:32768", "recv:300:32768"]
        self.pair(script, ["--segment", "65495"] + script)

    def test_credits(self):
        both = ["--flow-control", "--posted", "3"]
        output, _ = self.pair(
            both + ["--repost", "recv:400:9"], both + ["sends:400:9"]
        )
        self.assertIn("flow-control on posted 3", output)
        self.pair(both + ["recv:3", "post:2", "recv:2"], both + ["sends:5:9"])

    def test_send_without_credit_times_out(self):
        both = ["--flow-control", "--posted", "3"]
        server = Server(*both, "wait-close:10")
        # Only the client's: the server's also limits the time until the client has started.
        code, output = client(server, *both, "--timeout", "3", "sends:4:9")
        self.assertEqual(code, 1)
        self.assertIn("for a credit", output)
        server.end()

    def test_content_is_checked(self):
        reader = ["fill:3:100:50", "advertise", "recv:1:1",
                  "memory:0:0:60", "wait-close:5"]
        script = ["recv:1:16", "write:@:@:60", "send:1"]
        self.pair(reader, script + ["fetch:@+100:@:50:3"])
        for wrong in ("fetch:@+100:@:50:4", "fetch:@+101:@:50:3"):
            server = Server(*reader)
            code, output = client(server, *script, wrong)
            self.assertEqual(code, 1)
            self.assertIn("failed: read 50 bytes", output)
            server.end()
        for wrong in ("expect:1:5:7", "expect:0:5:8", "expect:0:5"):
            server = Server(wrong)
            client(server, "send:5:7")
            self.assertEqual(server.end()[0], 1, wrong)
        server = Server("recv:1:1", "memory:1:0:1")
        client(server, "send:1", "close")
        self.assertIn("failed: the memory is", server.end()[1])

    def test_malformed_client_messages_are_detected(self):
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
                    command("malformed.py", "--port", server.port, "--called",
                            "here", "--level", "rr", "run", name),
                    stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
                    timeout=15,
                )
                code, output = server.end()
                self.assertEqual(done.returncode, 0, done.stdout + output)
                self.assertIn(f"{name}: closed", done.stdout)
                self.assertEqual(code, 1)
                self.assertIn(text, output)

    def test_malformed_server_messages_are_detected(self):
        for name, text in (
            ("answer-ack-wrong", "Message ACK is"),
            ("answer-mtu-larger", "was proposed"),
            ("answer-calling-other", "Calling Discriminator is"),
            ("answer-with-request", "connect-request while awaiting"),
            ("answer-close-half", "closed inside of a segment"),
            ("number-skipped", "Message Number is"),
            ("response-longer", "RDMA Length is"),
            ("response-unsolicited", "no read request is pending"),
        ):
            with self.subTest(name=name):
                process = subprocess.Popen(
                    command("malformed.py", "--port", "0", "--level", "rr",
                            "serve", name, "--check"),
                    stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
                )
                server = Server.__new__(Server)
                server.process = process
                server.port = process.stdout.readline().split()[1]
                script = ["wait-close:5"]
                if name == "response-longer":
                    script = ["fetch:1:1:8:0"]
                code, output = client(server, "--level", "rr", *script)
                malformed_code, malformed_output = server.end()
                self.assertEqual(malformed_code, 0, malformed_output + output)
                self.assertEqual(code, 1)
                self.assertIn(text, output)

    def test_all_cases_have_known_outcomes(self):
        known = {"closed", "error", "refused", "response", "accept",
                 "reject", "no-match", "open", "local-close"}
        for entry in malformed.CASES.values():
            for level in wire.LEVELS:
                expected = entry.expected(level)
                self.assertLessEqual(set(expected), known, entry.name)
                self.assertTrue(expected, entry.name)


class Wrap(unittest.TestCase):
    """Counters that wrap around."""

    def run_wrap(self, flow_control, number):
        """65,536 - 20 receives used already, then 60 messages one way."""
        used = 0x10000 - 20
        local_parameters = ConnectParameters(
            b"a", b"b", flow_control=flow_control
        )
        remote_parameters = ConnectParameters(
            b"b", b"a", flow_control=flow_control
        )
        wanted = [pattern(index, 10) for index in range(60)]
        got = []
        output = []

        def serve():
            with listener:
                sock = listener.accept()[0]
            connection = Connection(False, number, used + 8, used)
            session = Session(sock, remote_parameters, connection, repost=True)
            with sock:
                session.accept(session.receive_request())
                got.extend(session.receive().payload for _ in wanted)
                session.close()
            output.append(connection.posted)

        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=serve)
        thread.start()
        connection = Connection(True, number, 5, used)
        with socket.create_connection(listener.getsockname()) as sock:
            session = Session(sock, local_parameters, connection)
            self.assertEqual(session.connect(), "accept")
            for data in wanted:
                session.send(data)
            session.wait_acknowledged()
            session.wait_close(5)
        thread.join()
        self.assertEqual(got, wanted)
        self.assertEqual(output, [used + 68])
        self.assertEqual(connection.used_locally, 40)
        if flow_control:
            self.assertLess(connection.remote_posted, 0x8000)

    def test_posted_wraps(self):
        self.run_wrap(True, 5)

    def test_numbers_wrap(self):
        self.run_wrap(False, 0xFFFFFFF0)
        self.run_wrap(True, 0xFFFFFFF0)


if __name__ == "__main__":
    unittest.main()
