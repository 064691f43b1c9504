"""What a peer says of what happens, and the bytes that it sends."""

import zlib


class Failure(Exception):
    """Something did not go as expected."""


def say(text):
    """Print one fact at once."""
    print(text, flush=True)


def pattern(start, length):
    """Return the payload of message number `start` of a script."""
    start %= 256
    return (bytes(range(256)) * (length // 256 + 2))[start:start + length]


def describe(data):
    """Return length and checksum of a payload."""
    return f"{len(data)} bytes crc32 {zlib.crc32(data):08x}"
