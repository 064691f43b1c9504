"""A wire that takes its time: two interfaces, whose frames it hands to each other.

Sends what comes in at one interface out of the other one, so many
milliseconds after it came and not sooner, and of each direction's frames drops
the Nth, the 2Nth, ...  What is at the other ends must send frames as they are
on a wire (plain.py).

It ends when its input ends, and says then what became of each direction's
frames: forwarded, dropped as it was told to, full (there was no room for
them), missed (the kernel had none).
"""

import argparse
import collections
import ctypes
import errno
import select
import socket
import struct
import sys
import time

# <linux/if_ether.h>, <linux/socket.h>, <asm-generic/socket.h>
ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_STATISTICS = 6
PACKET_IGNORE_OUTGOING = 23
SO_RCVBUFFORCE = 33
# <linux/prctl.h>, <bits/signum-generic.h>
PR_SET_PDEATHSIG = 1
SIGKILL = 9

# Frames of one direction that are on their way at a time.
QUEUE_FRAMES = 8192
# Frames that are read or sent before the other side is looked at again.
BURST_FRAMES = 64
RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024
LONGEST_FRAME_BYTES = 65536


class Direction:
    """Frames from one interface to the other."""

    def __init__(self, incoming, outgoing, delay_ns, drop_each):
        self.incoming = incoming
        self.outgoing = outgoing
        self.delay_ns = delay_ns
        self.drop_each = drop_each
        self.queue = collections.deque()
        self.came = 0
        self.forwarded = 0
        self.dropped = 0
        self.full = 0

    def take(self):
        """Read what has come, and note when it is to go."""
        for _ in range(BURST_FRAMES):
            try:
                frame = self.incoming.recv(LONGEST_FRAME_BYTES)
            except BlockingIOError:
                return
            self.came += 1
            if self.drop_each and self.came % self.drop_each == 0:
                self.dropped += 1
            elif len(self.queue) >= QUEUE_FRAMES:
                self.full += 1
            else:
                due = time.monotonic_ns() + self.delay_ns
                self.queue.append((due, frame))

    def give(self):
        """Send what is due."""
        for _ in range(BURST_FRAMES):
            if not self.queue or self.queue[0][0] > time.monotonic_ns():
                return
            _, frame = self.queue.popleft()
            try:
                self.outgoing.send(frame)
                self.forwarded += 1
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                self.full += 1

    def wait_seconds(self):
        """Return how long nothing is due; None if nothing is on its way."""
        if not self.queue:
            return None
        return max(0, self.queue[0][0] - time.monotonic_ns()) / 1e9

    def tell(self, name):
        """Print what became of its frames."""
        statistics = self.incoming.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        _, missed = struct.unpack("II", statistics)
        print(f"{name}: forwarded {self.forwarded} dropped {self.dropped} "
              f"full {self.full} missed {missed}", flush=True)


def open_interface(name):
    """Return a socket for all frames that come in at an interface."""
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    frames.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    frames.setblocking(False)
    # Not before the socket is as it must be does it hear anything.
    frames.bind((name, ETH_P_ALL))
    return frames


def forward(options):
    """Forward frames until the input ends."""
    left, right = open_interface(options.left), open_interface(options.right)
    delay_ns = round(options.delay_ms * 1e6)
    directions = [Direction(left, right, delay_ns, options.drop_each),
                  Direction(right, left, delay_ns, options.drop_each)]
    print("forwarding", flush=True)
    while True:
        waits = [direction.wait_seconds() for direction in directions]
        waits = [wait for wait in waits if wait is not None]
        limit = min(waits, default=None)
        ready, _, _ = select.select([left, right, sys.stdin], [], [], limit)
        if sys.stdin in ready and not sys.stdin.buffer.read1(1):
            break
        for direction in directions:
            direction.take()
            direction.give()
    directions[0].tell(options.left)
    directions[1].tell(options.right)


def main():
    """Read the command line and forward."""
    # Whoever started it may be killed while others hold its input open.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("left")
    parser.add_argument("right")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--drop-each", type=int, default=0)
    forward(parser.parse_args())


if __name__ == "__main__":
    main()
