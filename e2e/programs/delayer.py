"""Forwards frames between two interfaces with a delay.

Sends each frame that one interface receives on the other interface after
--delay-ms, and drops every Nth frame of each direction with --drop-each N.
The senders must have offloads disabled (disable_offloads.py).

When its input ends, it prints the frame counts of each direction: forwarded,
dropped by --drop-each, full (dropped by a full queue), missed (dropped by the
kernel).
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

# Maximum number of queued frames of one direction.
QUEUE_FRAMES = 8192
# Maximum number of frames read or sent before the other direction is served.
BURST_FRAMES = 64
RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024
LONGEST_FRAME_BYTES = 65536


class Direction:
    """The frames from one interface to the other."""

    def __init__(self, incoming, outgoing, delay_ns, drop_each):
        self.incoming = incoming
        self.outgoing = outgoing
        self.delay_ns = delay_ns
        self.drop_each = drop_each
        self.queue = collections.deque()
        self.received = 0
        self.forwarded = 0
        self.dropped = 0
        self.full = 0

    def receive(self):
        """Queue the received frames with their send times."""
        for _ in range(BURST_FRAMES):
            try:
                frame = self.incoming.recv(LONGEST_FRAME_BYTES)
            except BlockingIOError:
                return
            self.received += 1
            if self.drop_each and self.received % self.drop_each == 0:
                self.dropped += 1
            elif len(self.queue) >= QUEUE_FRAMES:
                self.full += 1
            else:
                due = time.monotonic_ns() + self.delay_ns
                self.queue.append((due, frame))

    def send(self):
        """Send the frames that are due."""
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
        """Return the time until the next frame is due; None without frames."""
        if not self.queue:
            return None
        return max(0, self.queue[0][0] - time.monotonic_ns()) / 1e9

    def print_counts(self, name):
        """Print the frame counts."""
        statistics = self.incoming.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        _, missed = struct.unpack("II", statistics)
        print(f"{name}: forwarded {self.forwarded} dropped {self.dropped} "
              f"full {self.full} missed {missed}", flush=True)


def open_interface(name):
    """Return a socket for all frames that an interface receives."""
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    frames.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    frames.setblocking(False)
    # Bound last: it receives frames only with all options set.
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
            direction.receive()
            direction.send()
    directions[0].print_counts(options.left)
    directions[1].print_counts(options.right)


def main():
    """Read the command line and forward."""
    # The parent may be killed while other processes hold the input open.
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
