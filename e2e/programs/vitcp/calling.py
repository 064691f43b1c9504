"""How a connection comes about [VI/TCP 3.2, 4]."""

import conversation
import wire
from facts import Failure, say
from wire import Kind


class Calling:
    """The part of a Session that asks, and that answers who asks."""

    def take_answer(self, what):
        """Wait for an answer, or a request, and return it."""
        self.wait_for(lambda: self.answers, self.timeout, what)
        return self.answers.popleft()

    def ask(self, security=None):
        """Send a Connect Request."""
        ce = self.hello.ce(security=security)
        if self.keyed:
            ce = self.keyed.request(self.talk.next_number, ce)
        self.talk.propose(ce)
        self.put(Kind.CONNECT_REQUEST, ce=ce)

    def connect(self, respond=None):
        """Active side [VI/TCP 4.2]; return "accept" or how it was refused."""
        security = None
        while True:
            self.ask(security)
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
            if self.keyed:
                self.keyed.challenged(message.ce.security)
                continue
            if respond is None:
                raise Failure(f"challenged: {message.ce.security.hex()}")
            say(f"challenge {message.ce.security.hex()}")
            security = respond

    def request(self):
        """Passive side [VI/TCP 4.3]: return the CE header of the request."""
        request = self.take_answer("a Connect Request").ce
        if self.keyed and self.keyed.challenge is None:
            return self.challenge(request, self.keyed.new_challenge())
        if self.keyed:
            try:
                self.keyed.requested(self.talk.heard, request)
            except Failure:
                self.refuse(Kind.CONNECT_REJECT, wire.IS_SECURITY)
                raise
        return request

    def judge(self, request):
        """Return None if the request suits us, else the Reject's code."""
        own = self.hello.ce()
        if request.called != self.hello.own:
            return "no-match"
        levels = {request.exact_level, own.exact_level} - {0}
        if request.reliable != own.reliable or len(levels) > 1:
            return wire.IS_LEVELS
        if request.mtu != own.mtu and not self.hello.negotiate:
            return wire.IS_SIZES
        return None

    def accept(self, request):
        """Send the Connect Accept [VI/TCP 3.2]."""
        mtu = min(request.mtu, self.hello.mtu)
        own = self.hello.ce(called=request.calling, mtu=mtu)
        if self.keyed:
            own = self.keyed.accept(self.talk.next_number, own)
        self.put(Kind.CONNECT_ACCEPT, ce=own)
        self.talk.establish(own, request, mtu)

    def challenge(self, request, security):
        """Ask for more, take the next Connect Request."""
        own = self.hello.ce(called=request.calling, security=security)
        self.put(Kind.CONNECT_REJECT, ce=own, is_error=wire.IS_CHALLENGE)
        self.talk.phase = conversation.Phase.REQUEST
        return self.request()

    def refuse(self, kind, is_error=0):
        """Send a Connect Reject or No Match, and close."""
        self.put(kind, is_error=is_error)
        self.close()
