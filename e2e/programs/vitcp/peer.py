"""A valid VI/TCP peer: connects or listens, then runs a script.

Prints one line per event.  Exit code 0 on success, 1 with an error text
otherwise.  Steps of the script, in the order of the arguments:

  send:BYTES[:IMM]                   one Send
  sends:COUNT:BYTES                  COUNT Sends
  recv:COUNT[:BYTES]                 expects COUNT messages (each of BYTES)
  expect:SERIAL:BYTES[:IMM]          expects this message, with IMM or without
  echo:COUNT:BYTES                   sends, expects the same bytes back
  reflect:COUNT                      echoes COUNT messages
  write:ADDRESS:HANDLE:BYTES[:IMM]   one RDMA Write
  fetch:ADDRESS:HANDLE:BYTES:SERIAL  one RDMA Read that returns this message
  fill:SERIAL:OFFSET:BYTES           writes a message into --memory
  memory:SERIAL:OFFSET:BYTES         expects a message in --memory
  advertise                          sends address, handle, length of --memory
  post:N                             raises Rx Descriptors Posted by N
  acked                              waits until all is acknowledged
  expect-error:CODE:SECONDS          expects VI Error Type CODE, then the close
  report-error:VI:IS                 expects a message, reports an error
  wait-close:SECONDS                 expects the peer to close
  close                              closes, expects the peer to follow

ADDRESS and HANDLE may be @: taken from the first message received (u64
address, u32 handle, u32 length, big-endian); ADDRESS may be @+OFFSET.
Payload byte i of the Kth message (from 0) is (K + i) mod 256, K its SERIAL.
"""

import argparse
import socket
import sys
import time

import key_proof
import tls
import wire
from connection import Connection
from common import Failure, report
from script import Script
from session import ConnectParameters, Session
from wire import Kind


def discriminator(text):
    """Parse a discriminator: text, or hex:DIGITS."""
    if text.startswith("hex:"):
        return bytes.fromhex(text[4:])
    return text.encode()


def common_options():
    """Return a parser for the options of client and server."""
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--host", default="127.0.0.1")
    both.add_argument("--port", type=int, default=wire.TCP_PORT)
    both.add_argument("--level", choices=wire.LEVELS, default="rd")
    both.add_argument("--mtu", type=int, default=32768)
    both.add_argument("--flow-control", action="store_true")
    both.add_argument("--posted", type=int, default=64,
                      help="receive descriptors posted before connecting")
    both.add_argument("--repost", action="store_true",
                      help="post one for each one used")
    both.add_argument("--number", type=lambda text: int(text, 0),
                      help="first Message Number")
    both.add_argument("--security", type=bytes.fromhex, default=b"")
    both.add_argument("--segment", type=int, default=1400,
                      help="payload bytes of a segment")
    both.add_argument("--split", type=int, default=0,
                      help="bytes of each piece sent, 0: whole segments")
    both.add_argument("--immediate", default="last",
                      choices=("last", "first", "every"),
                      help="segments of a message that have its IMM")
    both.add_argument("--memory", type=int, default=65536,
                      help="bytes of memory for RDMA of the peer")
    both.add_argument("--timeout", type=float, default=10.0,
                      help="seconds to wait for each event")
    key_proof.add_options(both)
    tls.add_options(both)
    both.add_argument("script", nargs="*")
    return both


def arguments():
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    both = common_options()
    client = commands.add_parser("client", parents=[both])
    client.add_argument("--called", type=discriminator, required=True)
    client.add_argument("--calling", type=discriminator, default=b"peer")
    client.add_argument("--retry", type=float, default=0.0,
                        help="seconds to repeat requests without match")
    client.add_argument("--expect", default="accept",
                        choices=("accept", "reject", "no-match"))

    server = commands.add_parser("server", parents=[both])
    server.add_argument("--disc", type=discriminator, required=True)
    return parser


def make_session(sock, options, active, peer_to_peer=False):
    """Make a Session with these options."""
    if not 1 <= options.segment <= wire.MAX_SEGMENT - 40:
        raise Failure(f"--segment {options.segment} is not 1 to 65495")
    parameters = ConnectParameters(
        own=options.calling if active else options.disc,
        called=options.called if active else b"",
        level=options.level,
        mtu=options.mtu,
        flow_control=options.flow_control,
        peer_to_peer=active and peer_to_peer,
        security=options.security,
    )
    connection = Connection(active, options.number, options.posted)
    session = Session(
        sock, parameters, connection, segment=options.segment,
        split=options.split, timeout=options.timeout, repost=options.repost,
        memory=options.memory, immediate_in=options.immediate,
    )
    key_proof.install(session, options, active)
    return session


def report_connected(session, other):
    """Print the negotiated values and the security of the peer."""
    connection = session.connection
    report(
        f"connected mtu {connection.mtu} flow-control "
        f"{'on' if connection.flow_control else 'off'} "
        f"posted {connection.remote_posted} "
        f"security {other.security.hex() or '-'}"
    )


def open_connection(options):
    """Open a TCP connection."""
    sock = socket.create_connection(
        (options.host, options.port), options.timeout
    )
    return tls.secured(sock, options, passive=False)


def run_client(options):
    """Connect, then run the script."""
    session = make_session(open_connection(options), options, active=True)
    deadline = time.monotonic() + options.retry
    answer = session.connect()
    while answer == "no-match" and time.monotonic() < deadline:
        time.sleep(0.01)
        session = make_session(open_connection(options), options, active=True)
        answer = session.connect()
    if answer.split()[0] != options.expect:
        raise Failure(f"{answer}, not {options.expect}")
    if answer != "accept":
        report(answer)
        session.wait_close(options.timeout)
        report("closed by the peer")
        return
    report_connected(session, session.accepted)
    Script(session).run(options.script)


def run_server(options):
    """Listen, answer one request, then run the script."""
    with socket.create_server((options.host, options.port)) as listener:
        report(f"listening {listener.getsockname()[1]}")
        listener.settimeout(options.timeout)
        try:
            sock, address = listener.accept()
        except TimeoutError:
            raise Failure(f"no client within {options.timeout} s") from None
    report(f"client {address[0]}")
    sock = tls.secured(sock, options, passive=True)
    session = make_session(sock, options, active=False)
    request = session.receive_request()
    report(
        f"request calling {request.calling!r} called {request.called!r} "
        f"mtu {request.mtu} attributes 0x{request.attributes:04x} "
        f"security {request.security.hex() or '-'}"
    )
    answer_request(session, request, options)


def answer_request(session, request, options):
    """Accept the request and run the script, or refuse it."""
    verdict = session.check_request(request)
    if verdict == "no-match":
        session.refuse(Kind.CONNECT_NO_MATCH)
        raise Failure(f"called {request.called!r}, not {options.disc!r}")
    if verdict is not None:
        session.refuse(Kind.CONNECT_REJECT, verdict)
        raise Failure(f"the request is not acceptable, code {verdict}")
    session.accept(request)
    report_connected(session, request)
    Script(session).run(options.script)


def main():
    """Run the command line; return the exit code."""
    options = arguments().parse_args()
    try:
        Script.check(options.script)
        if options.command == "client":
            run_client(options)
        else:
            run_server(options)
    except (Failure, wire.WireError, OSError, ValueError) as error:
        report(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
