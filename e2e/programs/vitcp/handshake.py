"""Connection establishment [VI/TCP 3.2, 4]."""

import connection
import wire
from common import Failure
from wire import Kind


class Handshake:
    """The part of a Session that sends and answers Connect Requests."""

    def take_answer(self, what):
        """Wait for an answer or a request, and return it."""
        self.wait_for(lambda: self.answers, self.timeout, what)
        return self.answers.popleft()

    def send_request(self):
        """Send a Connect Request."""
        ce = self.parameters.ce()
        if self.keyed:
            ce = self.keyed.request(self.connection.next_number, ce)
        self.connection.propose(ce)
        self.put(Kind.CONNECT_REQUEST, ce=ce)

    def connect(self):
        """Active side [VI/TCP 4.2]; return "accept" or the kind of refusal."""
        while True:
            self.send_request()
            message = self.take_answer("the answer to the Connect Request")
            header = message.segment.header
            if message.kind == Kind.CONNECT_ACCEPT:
                if self.keyed:
                    self.keyed.accepted(message.number, message.ce)
                self.accepted = message.ce
                return "accept"
            if message.kind == Kind.CONNECT_NO_MATCH:
                return "no-match"
            if header.is_error != wire.IS_CHALLENGE:
                return f"reject {header.is_error}"
            if not self.keyed:
                raise Failure(f"challenged: {message.ce.security.hex()}")
            self.keyed.challenged(message.ce.security)

    def receive_request(self):
        """Passive side [VI/TCP 4.3]: return the CE header of the request."""
        request = self.take_answer("a Connect Request").ce
        if self.keyed and self.keyed.challenge is None:
            return self.challenge(request, self.keyed.new_challenge())
        if self.keyed:
            try:
                self.keyed.requested(self.connection.received_number, request)
            except Failure:
                self.refuse(Kind.CONNECT_REJECT, wire.IS_SECURITY)
                raise
        return request

    def check_request(self, request):
        """Return None if the request is acceptable, else the Reject's code."""
        own = self.parameters.ce()
        if request.called != self.parameters.own:
            return "no-match"
        levels = {request.exact_level, own.exact_level} - {0}
        if request.reliable != own.reliable or len(levels) > 1:
            return wire.IS_LEVELS
        return None

    def accept(self, request):
        """Send the Connect Accept [VI/TCP 3.2]."""
        mtu = min(request.mtu, self.parameters.mtu)
        own = self.parameters.ce(called=request.calling, mtu=mtu)
        if self.keyed:
            own = self.keyed.accept(self.connection.next_number, own)
        self.put(Kind.CONNECT_ACCEPT, ce=own)
        self.connection.establish(own, request, mtu)

    def challenge(self, request, security):
        """Send a challenge and return the next Connect Request."""
        own = self.parameters.ce(called=request.calling, security=security)
        self.put(Kind.CONNECT_REJECT, ce=own, is_error=wire.IS_CHALLENGE)
        self.connection.phase = connection.Phase.REQUEST
        return self.receive_request()

    def refuse(self, kind, is_error=0):
        """Send a Connect Reject or No Match, and close."""
        self.put(kind, is_error=is_error)
        self.close()
