"""Tells one lie at a time over VI/TCP and reports what the other side did.

  liar.py --host H --port P --called DISC list
  liar.py --host H --port P --called DISC [...] run NAME [NAME ...] [--check]
  liar.py --host H --port P [...] serve NAME [NAME ...] [--check]

`run all` runs the lies of a client but those that need something of the
other side: send-longer-than-descriptor, and response-* of an RDMA Read.
`serve` listens instead (port 0 is any, printed is "listening PORT" before
each lie), takes one Connect Request, whomever it calls, and tells the lie as
the accepting side: one of those named answer-*, or one that is told on a
connection (`list --told-by-both`).  control-* are no lies: what is false in
one beside them is right there.  Options stand before the command.

Each lie has a connection of its own, behaves well up to the lie, tells it,
and watches for --patience seconds.  Printed is one line for each:

  NAME: closed                   the other side closed the connection
  NAME: answered TYPE CODE       it said an error, refused, or accepted; CODE
                                 is the Remote Error Code
  NAME: kept                     the connection is open and nothing was said
  NAME: untold TEXT              the lie could not be told

What the table expects is one or more of these outcomes:

  closed     closed, whether or not an error was said before
  error      a Remote Error Code was said, then closed
  refused    an RDMA Read Response without payload with Transmit Error
  accept     a Connect Accept; for lies that end by an honest connection,
             that this one was accepted
  response   an RDMA Read Response as an honest one has it
  left       it is us who left
  reject, no-match, kept
"""

import argparse
import random
import socket
import sys
import time

import keyed
import peer
import tls
import wire
from facts import Failure, say
from lies import ANSWER, LIES, Liar, Untold

# Each enters its lies into the table; this is the order in which they run.
import lies_segment  # noqa: F401
import lies_connect  # noqa: F401
import lies_rdma  # noqa: F401
import lies_response  # noqa: F401
import lies_message  # noqa: F401
import lies_stream  # noqa: F401
import lies_answer  # noqa: F401
import lies_tls  # noqa: F401
import lies_keyed  # noqa: F401


def run(name, options):
    """Tell one lie; return (tag, text)."""
    entry = LIES[name]
    liar = Liar(options, entry)
    try:
        if name.startswith(ANSWER) and not liar.passive:
            raise Untold("(it is a lie of a server)")
        if entry.asks and liar.passive:
            raise Untold("(it is a lie of a client)")
        outcome = entry.tell(liar)
        return outcome or liar.watch()
    except Untold as reason:
        return "untold", f"untold {reason}"
    except (Failure, wire.WireError) as error:
        # A lie of several parts may be found out before it is finished.
        if liar.session is not None and "cannot send" in str(error):
            return liar.watch()
        return "untold", f"untold ({error})"
    except OSError as error:
        return "untold", f"untold ({error})"
    finally:
        liar.end()


def main():
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=wire.TCP_PORT)
    parser.add_argument("--local-host")
    parser.add_argument("--called", type=peer.discriminator, default=b"")
    parser.add_argument("--calling", type=peer.discriminator, default=b"liar")
    parser.add_argument("--level", choices=wire.LEVELS, default="rd")
    parser.add_argument("--mtu", type=int, default=32768)
    parser.add_argument("--flow-control", action="store_true")
    parser.add_argument("--patience", type=float, default=5.0,
                        help="seconds to watch the other side")
    parser.add_argument("--quiet", type=float,
                        help="the same for lies that end all talk")
    parser.add_argument("--region", action="store_true",
                        help="the first message says address and handle")
    parser.add_argument("--probe", action="store_true",
                        help="what is to be kept must send back a message")
    parser.add_argument("--numbered", action="store_true",
                        help="call ourselves lie-N, N as named, from 0")
    parser.add_argument("--split", type=int, default=0,
                        help="bytes of each piece sent, 0 whole segments")
    parser.add_argument("--seed", type=int, help="of the random bytes")
    parser.add_argument("--segment", type=int, default=1400)
    parser.add_argument("--bytes", type=int,
                        help="of send-longer-than-descriptor")
    parser.add_argument("--extra", type=int, default=0,
                        help="Sends more, of send-without-credit")
    parser.add_argument("--count", type=int, default=100,
                        help="connections of half-open-flood")
    keyed.add_options(parser)
    tls.add_options(parser)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print all names")
    listing.add_argument("--expected", action="store_true",
                         help="print also what is expected")
    listing.add_argument("--answers", action="store_true",
                         help="those that only serve can tell")
    listing.add_argument("--told-by-both", action="store_true",
                         help="those that are told on a connection")
    listing.add_argument("--all", action="store_true",
                         help="those of `run all` only")
    running = commands.add_parser("run", help="tell lies")
    running.add_argument("names", nargs="+", metavar="NAME")
    running.add_argument("--check", action="store_true",
                         help="exit 1 if the outcome is not the expected")
    serving = commands.add_parser("serve", help="tell lies to a caller")
    serving.add_argument("names", nargs="+", metavar="NAME")
    serving.add_argument("--check", action="store_true",
                         help="exit 1 if the outcome is not the expected")
    serving.add_argument("--wait", type=float, default=30.0,
                         help="seconds to wait for the call")
    options = parser.parse_args()
    if options.command == "list":
        for name, entry in LIES.items():
            if name.startswith(ANSWER) is not options.answers:
                continue
            if options.told_by_both and entry.asks:
                continue
            if options.all and entry.apart:
                continue
            wanted = " " + ",".join(entry.expected(options.level))
            print(name + (wanted if options.expected else ""))
        return 0
    return run_all(options, parser)


def run_all(options, parser):
    """Run the lies named; return the exit code."""
    names = options.names
    if names == ["all"]:
        names = [
            name for name, entry in LIES.items()
            if not name.startswith(ANSWER) and not entry.apart
        ]
    for name in names:
        if name not in LIES:
            parser.error(f"there is no lie {name!r}")
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    if any("garbage" in name for name in names):
        say(f"seed {options.seed}")
    result = 0
    if options.command == "serve":
        # One for all: who calls too early for a lie waits in its backlog.
        options.listener = socket.create_server((options.host, options.port))
    for number, name in enumerate(names):
        if options.numbered:
            options.calling = f"lie-{number}".encode()
        expected = LIES[name].expected(options.level)
        deadline = time.monotonic() + options.patience
        tag, text = run(name, options)
        # After each request that a server takes nobody waits for a moment.
        while (tag == "no-match" and tag not in expected
               and time.monotonic() < deadline):
            tag, text = run(name, options)
        say(f"{name}: {text}")
        if not options.check:
            continue
        if tag not in expected:
            say(f"{name}: expected {' or '.join(expected)}")
            result = 1
    return result


if __name__ == "__main__":
    sys.exit(main())
