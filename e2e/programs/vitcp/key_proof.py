"""Keyed challenge-response: both sides prove that they have the same key.

docs/spec/vitcp.md, "Keyed challenge-response"; an extension of the draft.
"""

import hashlib
import hmac
import ipaddress
import os
import struct
from dataclasses import replace

from common import Failure
from wire import CE_BYTES

FORM = b"\x01"
NONCE_BYTES = 32
PROOF_BYTES = 32
REQUEST = b"VI/TCP request 1"
ACCEPT = b"VI/TCP accept  1"


def add_options(parser):
    """Add the option for a key to a parser."""
    parser.add_argument("--key", type=bytes.fromhex,
                        help="connect only with peers that prove this key")


def install(session, options, active):
    """Add the key proof to a session if the options have a key."""
    if options.key is not None:
        session.keyed = KeyProof(options.key, session, active)


def ipv6(host):
    """Return the 16 bytes of an address, IPv4-mapped if necessary."""
    address = ipaddress.ip_address(host)
    if address.version == 4:
        return bytes(10) + b"\xff\xff" + address.packed
    return address.packed


class KeyProof:
    """The state of the exchange on one side."""

    def __init__(self, key, session, active):
        self.key = key
        ends = session.sock.getsockname()[0], session.sock.getpeername()[0]
        client, server = ends if active else reversed(ends)
        self.hosts = ipv6(client) + ipv6(server)
        self.challenge = None
        self.nonce = None

    def proof(self, label, number, ce):
        """Return the proof of message `number` with this CE header."""
        own = ce.security
        data = b"".join((
            label, self.hosts, self.challenge, self.nonce,
            struct.pack(">I", number), ce.pack()[:CE_BYTES],
            struct.pack(">H", len(own)), own,
        ))
        return hmac.digest(self.key, data, hashlib.sha256)

    # the client

    def challenged(self, security):
        """Store the challenge of the server."""
        if self.challenge is not None:
            raise Failure("challenged a second time")
        if len(security) != 1 + NONCE_BYTES or security[:1] != FORM:
            raise Failure(f"malformed challenge: {security.hex()}")
        self.challenge = security[1:]
        self.nonce = os.urandom(NONCE_BYTES)

    def request(self, number, ce):
        """Return the CE header of a Connect Request with the proof."""
        if self.challenge is None:
            return replace(ce, security=b"")
        proof = self.proof(REQUEST, number, ce)
        return replace(ce, security=FORM + self.nonce + proof + ce.security)

    def accepted(self, number, ce):
        """Verify the proof of the Connect Accept."""
        if self.challenge is None:
            raise Failure("accepted without a challenge")
        self._verify(ACCEPT, number, ce, 1)

    # the server

    def new_challenge(self):
        """Return the Security Information of a challenge."""
        self.challenge = os.urandom(NONCE_BYTES)
        return FORM + self.challenge

    def requested(self, number, ce):
        """Verify the proof of the Connect Request after the challenge."""
        self.nonce = ce.security[1:1 + NONCE_BYTES]
        self._verify(REQUEST, number, ce, 1 + NONCE_BYTES)

    def accept(self, number, ce):
        """Return the CE header of a Connect Accept with the proof."""
        proof = self.proof(ACCEPT, number, ce)
        return replace(ce, security=FORM + proof + ce.security)

    def _verify(self, label, number, ce, offset):
        """Raise Failure unless the security has the proof at `offset`."""
        security = ce.security
        proof = security[offset:offset + PROOF_BYTES]
        ce = replace(ce, security=security[offset + PROOF_BYTES:])
        wanted = self.proof(label, number, ce)
        if security[:1] != FORM or not hmac.compare_digest(proof, wanted):
            raise Failure(f"invalid proof: {security.hex()}")
