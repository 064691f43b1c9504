"""Peer to peer: both ask, and the requests cross [VI/TCP 4].

  meet.py --host OWN --other HOST --called NAME [options of peer.py] [STEP ...]

Waits for the request of the other side, asks on a connection of its own
before it answers, and then concedes if its own IP address is the lower one.
With --silent it does not answer at all.
"""

import argparse
import ipaddress
import socket
import sys

import peer
import wire
from facts import Failure, say
from script import Script
from wire import Kind


def arguments():
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, parents=[peer.common()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--other", required=True)
    parser.add_argument("--called", type=peer.discriminator, required=True)
    parser.add_argument("--calling", type=peer.discriminator, default=b"peer")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--peer-to-peer", action="store_true", default=True)
    return parser


def asked(listener, options):
    """Return a session whose request has come, and the request."""
    listener.settimeout(options.timeout)
    options.disc = options.called
    sock = listener.accept()[0]
    session = peer.make_session(sock, options, active=False)
    request = session.request()
    if not request.attributes & wire.PEER_TO_PEER:
        raise Failure("the request is not peer to peer")
    if request.called != options.called:
        raise Failure(f"called {request.called!r}, not {options.called!r}")
    say(f"asked by {request.calling.decode()}")
    return session, request


def ask(options):
    """Return a session whose request is out."""
    sock = socket.create_connection(
        (options.other, options.port), options.timeout, (options.host, 0)
    )
    session = peer.make_session(sock, options, active=True)
    session.ask()
    say("asks, too")
    return session


def meet(options):
    """Return the session that stands, and what the other side said."""
    with socket.create_server((options.host, options.port)) as listener:
        say(f"listening {options.port}")
        theirs, request = asked(listener, options)
    ours = ask(options)
    address = ipaddress.ip_address
    if options.silent or address(options.host) > address(options.other):
        if not options.silent:
            theirs.refuse(Kind.CONNECT_NO_MATCH)
        say("stands")
        answer = ours.take_answer("the answer to the Connect Request")
        if answer.kind != Kind.CONNECT_ACCEPT:
            raise Failure(f"answered {wire.kind_name(answer.kind)}")
        return ours, answer.ce
    answer = ours.take_answer("the refusal of the Connect Request")
    if answer.kind != Kind.CONNECT_NO_MATCH:
        raise Failure(f"answered {wire.kind_name(answer.kind)}")
    ours.wait_close(options.timeout)
    say("concedes")
    theirs.accept(request)
    return theirs, request


def main():
    """Run the command line; return the exit code."""
    options = arguments().parse_args()
    try:
        Script.check(options.script)
        session, other = meet(options)
        peer.say_connected(session, other)
        Script(session).run(options.script)
    except (Failure, wire.WireError, OSError, ValueError) as error:
        say(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
