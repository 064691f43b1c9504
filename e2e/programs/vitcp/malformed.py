"""Sends malformed VI/TCP messages and reports how the peer reacts.

  malformed.py --host H --port P --called DISC list
  malformed.py --host H --port P --called DISC [...] run NAME ... [--check]
  malformed.py --host H --port P [...] serve NAME ... [--check]

`run all` runs all cases of a client except those that need support by the
peer: response-* of an RDMA Read, those of keys and of TLS.  `serve`
listens instead (port 0 is any; it prints "listening PORT" before each case),
accepts a Connect Request with any Called Discriminator, and runs the case as
the server: one of answer-*, or one on an established connection (`list
--both-roles`).  control-* are valid messages: controls of similar cases.
Options precede the command.

Each case uses a new connection, which is valid up to the malformed message,
and then observes the peer for --timeout seconds.  One line is printed per
case:

  NAME: closed                   the peer closed the connection
  NAME: answered TYPE CODE       the peer sent an error, a refusal, or an
                                 accept; CODE is the Remote Error Code
  NAME: open                     the connection is open, without a response
  NAME: not-run TEXT             the case could not be run

The table of cases expects one or more of these outcomes:

  closed       closed, with or without an error before
  error        a Remote Error Code, then closed
  refused      an RDMA Read Response without payload with Transmit Error
  accept       a Connect Accept; for cases that end with a valid connection,
               an accept of that one
  response     a valid RDMA Read Response
  local-close  this program closed the connection
  reject, no-match, open
"""

import argparse
import random
import socket
import sys
import time

import key_proof
import peer
import tls
import wire
from common import Failure, report
from malformed_cases import ANSWER, CASES, Sender, NotRun

# Each adds its cases to the table; they run in this order.
import malformed_segment  # noqa: F401
import malformed_connect  # noqa: F401
import malformed_rdma  # noqa: F401
import malformed_response  # noqa: F401
import malformed_message  # noqa: F401
import malformed_stream  # noqa: F401
import malformed_answer  # noqa: F401
import malformed_tls  # noqa: F401
import malformed_keyed  # noqa: F401


def run(name, options):
    """Run one case; return (tag, text)."""
    entry = CASES[name]
    sender = Sender(options, entry)
    try:
        if name.startswith(ANSWER) and not sender.passive:
            raise NotRun("(it is a case of a server)")
        if entry.client_only and sender.passive:
            raise NotRun("(it is a case of a client)")
        outcome = entry.run(sender)
        return outcome or sender.observe()
    except NotRun as reason:
        return "not-run", f"not-run {reason}"
    except (Failure, wire.WireError) as error:
        # The peer may close the connection during a case of several parts.
        if sender.session is not None and "cannot send" in str(error):
            return sender.observe()
        return "not-run", f"not-run ({error})"
    except OSError as error:
        return "not-run", f"not-run ({error})"
    finally:
        sender.end()


def main():
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=wire.TCP_PORT)
    parser.add_argument("--called", type=peer.discriminator, default=b"")
    parser.add_argument("--calling", type=peer.discriminator, default=b"case")
    parser.add_argument("--level", choices=wire.LEVELS, default="rd")
    parser.add_argument("--mtu", type=int, default=32768)
    parser.add_argument("--flow-control", action="store_true")
    parser.add_argument("--timeout", dest="watch_timeout", type=float,
                        default=5.0, help="seconds to observe the peer")
    parser.add_argument("--silent-timeout", type=float,
                        help="the same for cases after which nothing is sent")
    parser.add_argument("--region", action="store_true",
                        help="the first message has address and handle")
    parser.add_argument("--probe", action="store_true",
                        help="open connections must echo a message")
    parser.add_argument("--numbered", action="store_true",
                        help="client name case-N, N counted from 0")
    parser.add_argument("--split", type=int, default=0,
                        help="bytes of each piece sent, 0: whole segments")
    parser.add_argument("--seed", type=int, help="of the random bytes")
    parser.add_argument("--segment", type=int, default=1400)
    key_proof.add_options(parser)
    tls.add_options(parser)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print the names of cases")
    listing.add_argument("--answers", action="store_true",
                         help="cases of `serve` only")
    listing.add_argument("--both-roles", action="store_true",
                         help="cases on an established connection")
    listing.add_argument("--all", action="store_true",
                         help="cases of `run all` only")
    running = commands.add_parser("run", help="run cases as client")
    running.add_argument("names", nargs="+", metavar="NAME")
    running.add_argument("--check", action="store_true",
                         help="exit 1 if the outcome is not expected")
    serving = commands.add_parser("serve", help="run cases as server")
    serving.add_argument("names", nargs="+", metavar="NAME")
    serving.add_argument("--check", action="store_true",
                         help="exit 1 if the outcome is not expected")
    options = parser.parse_args()
    if options.command == "list":
        for name, entry in CASES.items():
            if name.startswith(ANSWER) is not options.answers:
                continue
            if options.both_roles and entry.client_only:
                continue
            if options.all and entry.by_name_only:
                continue
            print(name)
        return 0
    return run_all(options, parser)


def run_all(options, parser):
    """Run the named cases; return the exit code."""
    names = options.names
    if names == ["all"]:
        names = [
            name for name, entry in CASES.items()
            if not name.startswith(ANSWER) and not entry.by_name_only
        ]
    for name in names:
        if name not in CASES:
            parser.error(f"unknown case {name!r}")
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    if any("garbage" in name for name in names):
        report(f"seed {options.seed}")
    result = 0
    if options.command == "serve":
        # One listener for all cases: early clients wait in its backlog.
        options.listener = socket.create_server((options.host, options.port))
    for number, name in enumerate(names):
        if options.numbered:
            options.calling = f"case-{number}".encode()
        expected = CASES[name].expected(options.level)
        deadline = time.monotonic() + options.watch_timeout
        tag, text = run(name, options)
        # A server does not listen between two calls: repeat the request.
        while (tag == "no-match" and tag not in expected
               and time.monotonic() < deadline):
            tag, text = run(name, options)
        report(f"{name}: {text}")
        if not options.check:
            continue
        if tag not in expected:
            report(f"{name}: expected {' or '.join(expected)}")
            result = 1
    return result


if __name__ == "__main__":
    sys.exit(main())
