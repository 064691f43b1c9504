"""Simultaneous peer-to-peer requests of both sides [VI/TCP 4].

  peer_to_peer.py --host OWN --other HOST --called NAME [peer.py options] ...

Waits for the request of the peer, sends its own request on another
connection, and yields to the peer if its own IP address is the lower one.
With --silent it does not respond to the peer's request.
"""

import argparse
import ipaddress
import socket
import sys

import peer
import wire
from common import Failure, report
from script import Script
from wire import Kind


def arguments():
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, parents=[peer.common_options()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--other", required=True)
    parser.add_argument("--called", type=peer.discriminator, required=True)
    parser.add_argument("--calling", type=peer.discriminator, default=b"peer")
    parser.add_argument("--silent", action="store_true")
    return parser


def receive_request(listener, options):
    """Return a session with a pending request, and the request."""
    listener.settimeout(options.timeout)
    options.disc = options.called
    sock = listener.accept()[0]
    session = peer.make_session(sock, options, active=False)
    request = session.receive_request()
    if not request.attributes & wire.PEER_TO_PEER:
        raise Failure("the request is not peer to peer")
    if request.called != options.called:
        raise Failure(f"called {request.called!r}, not {options.called!r}")
    report(f"request from {request.calling.decode()}")
    return session, request


def send_request(options):
    """Return a session whose request is sent."""
    sock = socket.create_connection(
        (options.other, options.port), options.timeout, (options.host, 0)
    )
    session = peer.make_session(sock, options, active=True, peer_to_peer=True)
    session.send_request()
    report("request sent")
    return session


def connect(options):
    """Return the established session, and the CE header of the peer."""
    with socket.create_server((options.host, options.port)) as listener:
        report(f"listening {options.port}")
        theirs, request = receive_request(listener, options)
    ours = send_request(options)
    address = ipaddress.ip_address
    if options.silent or address(options.host) > address(options.other):
        if not options.silent:
            theirs.refuse(Kind.CONNECT_NO_MATCH)
        report("request kept")
        answer = ours.take_answer("the answer to the Connect Request")
        if answer.kind != Kind.CONNECT_ACCEPT:
            raise Failure(f"answered {wire.kind_name(answer.kind)}")
        return ours, answer.ce
    answer = ours.take_answer("the refusal of the Connect Request")
    if answer.kind != Kind.CONNECT_NO_MATCH:
        raise Failure(f"answered {wire.kind_name(answer.kind)}")
    ours.wait_close(options.timeout)
    report("yields to peer")
    theirs.accept(request)
    return theirs, request


def main():
    """Run the command line; return the exit code."""
    options = arguments().parse_args()
    try:
        Script.check(options.script)
        session, other = connect(options)
        peer.report_connected(session, other)
        Script(session).run(options.script)
    except (Failure, wire.WireError, OSError, ValueError) as error:
        report(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
