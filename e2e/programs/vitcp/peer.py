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
  read:ADDRESS:HANDLE:BYTES          one RDMA Read
  verify:ADDRESS:HANDLE:BYTES        RDMA Write, then RDMA Read of the same
    fetch:ADDRESS:HANDLE:BYTES:SERIAL  one RDMA Read that returns this message
    fill:SERIAL:OFFSET:BYTES           writes a message into --memory
  memory:SERIAL:OFFSET:BYTES         expects a message in --memory
    refused:ADDRESS:HANDLE:BYTES       one RDMA Read that must be refused
  advertise                          sends address, handle, length of --memory
  nop                                one NOP
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
    both.add_argument("--no-negotiate", action="store_true",
                      help="reject a request with another MTU")
    both.add_argument("--flow-control", action="store_true")
    both.add_argument("--posted", type=int, default=64,
                      help="receive descriptors posted before connecting")
    both.add_argument("--repost", action="store_true",
                      help="post one for each one used")
    both.add_argument("--number", type=lambda text: int(text, 0),
                      help="first Message Number")
    both.add_argument("--read-window", type=int, default=16)
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
    both.add_argument("--base", type=lambda text: int(text, 0),
                      default=0x10000, help="address of --memory")
    both.add_argument("--handle", type=lambda text: int(text, 0),
                      default=0x4D454D, help="handle of --memory")
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
    client.add_argument("--local-host")
    client.add_argument("--called", type=discriminator, required=True)
    client.add_argument("--calling", type=discriminator, default=b"peer")
    client.add_argument("--peer-to-peer", action="store_true")
    client.add_argument("--respond", type=bytes.fromhex,
                        help="security information to answer a challenge")
    client.add_argument("--retry", type=float, default=0.0,
                        help="seconds to repeat requests without match")
    client.add_argument("--expect", default="accept",
                        choices=("accept", "reject", "no-match", "close"))

    server = commands.add_parser("server", parents=[both])
    server.add_argument("--disc", type=discriminator, required=True)
    server.add_argument("--expect-calling", type=discriminator)
    server.add_argument("--challenge", type=bytes.fromhex,
                        help="security information of a challenge")
    server.add_argument("--answer", default="accept", choices=(
        "accept", "reject", "no-match", "silence", "close"))
    server.add_argument("--reject-code", type=int, default=wire.IS_REJECTED)
    return parser


def make_session(sock, options, active):
    """Make a Session with these options."""
    if not 1 <= options.segment <= wire.MAX_SEGMENT - 40:
        raise Failure(f"--segment {options.segment} is not 1 to 65495")
    parameters = ConnectParameters(
        own=options.calling if active else options.disc,
        called=options.called if active else b"",
        level=options.level,
        mtu=options.mtu,
        flow_control=options.flow_control,
        negotiate=not options.no_negotiate,
        peer_to_peer=active and options.peer_to_peer,
        read_window=options.read_window,
        security=options.security,
    )
    connection = Connection(active, options.number, options.posted)
    session = Session(
        sock, parameters, connection, segment=options.segment,
        split=options.split, timeout=options.timeout, repost=options.repost,
        memory=options.memory, base=options.base, handle=options.handle,
        immediate_in=options.immediate,
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
    source = (options.local_host, 0) if options.local_host else None
    sock = socket.create_connection(
        (options.host, options.port), options.timeout, source
    )
    return tls.secured(sock, options, passive=False)


def run_client(options):
    """Connect, then run the script."""
    session = make_session(open_connection(options), options, active=True)
    if options.expect == "close":
        ce = session.parameters.ce()
        session.connection.propose(ce)
        session.put(Kind.CONNECT_REQUEST, ce=ce)
        session.wait_close(options.timeout)
        report("closed by the peer")
        return
    deadline = time.monotonic() + options.retry
    answer = session.connect(options.respond)
    while answer == "no-match" and time.monotonic() < deadline:
        time.sleep(0.01)
        session = make_session(open_connection(options), options, active=True)
        answer = session.connect(options.respond)
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
    if options.challenge is not None:
        request = session.challenge(request, options.challenge)
        report(f"response {request.security.hex()}")
    report(
        f"request calling {request.calling!r} called {request.called!r} "
        f"mtu {request.mtu} attributes 0x{request.attributes:04x} "
        f"security {request.security.hex() or '-'}"
    )
    answer_request(session, request, options)


def answer_request(session, request, options):
    """Send the --answer; the script runs only after an Accept."""
    if options.answer == "silence":
        session.wait_close(options.timeout)
        report("closed by the peer")
        return
    if options.answer == "close":
        session.close()
        report("closed")
        return
    if options.answer == "reject":
        session.refuse(Kind.CONNECT_REJECT, options.reject_code)
        report(f"rejected {options.reject_code}")
        return
    if options.answer == "no-match":
        session.refuse(Kind.CONNECT_NO_MATCH)
        report("answered no-match")
        return
    calling = options.expect_calling
    if calling is not None and request.calling != calling:
        raise Failure(f"calling {request.calling!r}, not {calling!r}")
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
