"""Error type, output lines and payload patterns of the programs."""

import zlib


class Failure(Exception):
    """The peer or the connection behaved unexpectedly."""


def report(text):
    """Print a line immediately."""
    print(text, flush=True)


def pattern(start, length):
    """Return the payload of message number `start` of a script."""
    start %= 256
    return (bytes(range(256)) * (length // 256 + 2))[start:start + length]


def describe(data):
    """Return a text with length and checksum of a payload."""
    return f"{len(data)} bytes crc32 {zlib.crc32(data):08x}"
