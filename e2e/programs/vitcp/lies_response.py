"""Lies about the answer to an RDMA Read Request [VI/TCP 3.1, 3.2.1]."""

from dataclasses import replace

import wire
from facts import Failure, pattern
from lies import Untold, lie
from wire import Kind


def _await_request(liar):
    """Return a Read Request of the other side, or raise Untold."""
    session = liar.connect()
    asked = []
    session.respond = asked.append
    try:
        session.wait_for(lambda: asked, liar.options.patience, "a read")
    except Failure as failure:
        raise Untold(f"({failure})") from None
    return asked[0]


def _answer(liar, message, data, rdma=None, **fields):
    """Make a Read Response; all but the arguments is right."""
    fields.setdefault("number", message.number)
    return liar.segment(
        Kind.READ_RESPONSE, data, rdma or message.rdma, **fields
    )


def _right(message):
    """Return the bytes that were asked for, as this side has them."""
    return pattern(0, message.rdma.length)


@lie("control-response", "kept", apart=True)
def _control_response(liar):
    """What was asked for."""
    message = _await_request(liar)
    liar.say(_answer(liar, message, _right(message)))


@lie("control-response-in-two", "kept", apart=True)
def _control_response_in_two(liar):
    """What was asked for, in two segments."""
    liar.say(*_in_two(liar, _await_request(liar)))


def _in_two(liar, message):
    """Return the two segments of an answer."""
    data = _right(message)
    middle = len(data) // 2
    return (
        _answer(liar, message, data[:middle], flags=0),
        _answer(liar, message, data[middle:], offset=middle),
    )


def _response_lie(name, **changes):
    """Enter a lie that is a changed segment header of an answer."""
    @lie(f"response-{name}", "closed", apart=True)
    def tell(liar):
        message = _await_request(liar)
        liar.say(liar.wrong(
            _answer(liar, message, _right(message)), **changes
        ))


_response_lie("version-2", version=2)
_response_lie("offset-1", offset=1)
_response_lie("transmit-error", flags=wire.END | wire.TRANSMIT_ERROR)


def _length_lie(name, more):
    """Enter a lie of more bytes, or fewer, than were asked for."""
    @lie(f"response-{name}", "closed", apart=True)
    def tell(liar):
        message = _await_request(liar)
        data = pattern(0, max(0, message.rdma.length + more))
        liar.say(_answer(liar, message, data))


@lie("response-immediate", "kept", apart=True)
def _response_immediate(liar):
    """A flag that says nothing there."""
    message = _await_request(liar)
    flags = wire.END | wire.IMMEDIATE
    liar.say(_answer(liar, message, _right(message), flags=flags))


_length_lie("longer", 1)
_length_lie("shorter", -1)
_length_lie("empty", -(1 << 32))


def _rdma_lie(field, change):
    """Enter lies about the RDMA header: in the only segment, and a second."""
    def other(message):
        value = getattr(message.rdma, field) ^ change
        return replace(message.rdma, **{field: value})

    @lie(f"response-other-{field}", "closed", apart=True)
    def tell(liar):
        message = _await_request(liar)
        liar.say(_answer(liar, message, _right(message), other(message)))

    @lie(f"response-changes-{field}", "closed", apart=True)
    def tell_behind(liar):
        message = _await_request(liar)
        first, second = _in_two(liar, message)
        liar.say(first, replace(second, rdma=other(message)))


_rdma_lie("address", 4096)
_rdma_lie("handle", 1)
_rdma_lie("length", 1 << 10)


@lie("response-other-number", "closed", apart=True)
def _response_other_number(liar):
    """A Read Response with a number that no request has."""
    message = _await_request(liar)
    number = wire.after(message.number, 1000)
    liar.say(_answer(liar, message, _right(message), number=number))


@lie("response-refused", "closed", apart=True)
def _response_refused(liar):
    """No lie: a refusal, which ends the connection all the same."""
    message = _await_request(liar)
    flags = wire.END | wire.TRANSMIT_ERROR
    liar.say(_answer(liar, message, b"", flags=flags))


@lie("response-twice", "closed", apart=True)
def _response_twice(liar):
    """One answer, and the same again."""
    message = _await_request(liar)
    answer = _answer(liar, message, _right(message))
    liar.say(answer, answer)


@lie("response-half", "closed", apart=True)
def _response_half(liar):
    """One of two segments, and no more."""
    liar.say(_in_two(liar, _await_request(liar))[0])


@lie("response-never", "closed", apart=True)
def _response_never(liar):
    """No answer."""
    _await_request(liar)
