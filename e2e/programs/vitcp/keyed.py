"""Ends that share a key prove it to each other before they are connected.

docs/spec/vitcp.md, "Keyed challenge-response"; nothing of it is the draft's.
"""

import hashlib
import hmac
import ipaddress
import os
import struct
from dataclasses import replace

from facts import Failure
from wire import CE_BYTES

FORM = b"\x01"
NONCE_BYTES = 32
PROOF_BYTES = 32
REQUEST = b"VI/TCP request 1"
ACCEPT = b"VI/TCP accept  1"


def add_options(parser):
    """Add the option of a key to a parser."""
    parser.add_argument("--key", type=bytes.fromhex,
                        help="connect only with who proves to have it, too")


def give(session, options, active):
    """Have the session prove the key of the options, if there is one."""
    if options.key is not None:
        session.keyed = Keyed(options.key, session, active)


def ipv6(host):
    """Return the 16 bytes of an address, also of one of IPv4."""
    address = ipaddress.ip_address(host)
    if address.version == 4:
        return bytes(10) + b"\xff\xff" + address.packed
    return address.packed


class Keyed:
    """What one end knows of the exchange."""

    def __init__(self, key, session, active):
        self.key = key
        ends = session.sock.getsockname()[0], session.sock.getpeername()[0]
        asking, asked = ends if active else reversed(ends)
        self.hosts = ipv6(asking) + ipv6(asked)
        self.challenge = None
        self.nonce = None

    def proof(self, label, number, ce):
        """Prove message `number` with this CE header."""
        own = ce.security
        said = b"".join((
            label, self.hosts, self.challenge, self.nonce,
            struct.pack(">I", number), ce.pack()[:CE_BYTES],
            struct.pack(">H", len(own)), own,
        ))
        return hmac.digest(self.key, said, hashlib.sha256)

    # the end that asks

    def challenged(self, security):
        """Take the challenge of the other end."""
        if self.challenge is not None:
            raise Failure("challenged a second time")
        if len(security) != 1 + NONCE_BYTES or security[:1] != FORM:
            raise Failure(f"no challenge of ours: {security.hex()}")
        self.challenge = security[1:]
        self.nonce = os.urandom(NONCE_BYTES)

    def request(self, number, ce):
        """Put the proof into the CE header of a Connect Request."""
        if self.challenge is None:
            return replace(ce, security=b"")
        proof = self.proof(REQUEST, number, ce)
        return replace(ce, security=FORM + self.nonce + proof + ce.security)

    def accepted(self, number, ce):
        """Judge the Connect Accept."""
        if self.challenge is None:
            raise Failure("accepted without a challenge")
        self._judge(ACCEPT, number, ce, 1)

    # the end that is asked

    def new_challenge(self):
        """Return the Security Information of a challenge."""
        self.challenge = os.urandom(NONCE_BYTES)
        return FORM + self.challenge

    def requested(self, number, ce):
        """Judge the Connect Request behind the challenge."""
        self.nonce = ce.security[1:1 + NONCE_BYTES]
        self._judge(REQUEST, number, ce, 1 + NONCE_BYTES)

    def accept(self, number, ce):
        """Put the proof into the CE header of a Connect Accept."""
        proof = self.proof(ACCEPT, number, ce)
        return replace(ce, security=FORM + proof + ce.security)

    def _judge(self, label, number, ce, offset):
        """Failure unless a proof stands at `offset` of the security."""
        said = ce.security
        proof = said[offset:offset + PROOF_BYTES]
        ce = replace(ce, security=said[offset + PROOF_BYTES:])
        wanted = self.proof(label, number, ce)
        if said[:1] != FORM or not hmac.compare_digest(proof, wanted):
            raise Failure(f"no proof of our key: {said.hex()}")
