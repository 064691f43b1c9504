"""Malformed RDMA Read Responses [VI/TCP 3.1, 3.2.1]."""

from dataclasses import replace

import wire
from common import Failure, pattern
from malformed_cases import NotRun, case
from wire import Kind


def _await_request(sender):
    """Return a Read Request of the peer, or raise NotRun."""
    session = sender.connect()
    requests = []
    session.respond = requests.append
    try:
        session.wait_for(
            lambda: requests, sender.options.watch_timeout, "a read"
        )
    except Failure as failure:
        raise NotRun(f"({failure})") from None
    return requests[0]


def _answer(sender, message, data, rdma=None, **fields):
    """Make a Read Response, valid except for the arguments."""
    fields.setdefault("number", message.number)
    return sender.segment(
        Kind.READ_RESPONSE, data, rdma or message.rdma, **fields
    )


def _right(message):
    """Return the requested bytes."""
    return pattern(0, message.rdma.length)


@case("control-response", "open", by_name_only=True)
def _control_response(sender):
    """A valid response."""
    message = _await_request(sender)
    sender.send(_answer(sender, message, _right(message)))


@case("control-response-in-two", "open", by_name_only=True)
def _control_response_in_two(sender):
    """A valid response in two segments."""
    sender.send(*_in_two(sender, _await_request(sender)))


def _in_two(sender, message):
    """Return the two segments of a response."""
    data = _right(message)
    middle = len(data) // 2
    return (
        _answer(sender, message, data[:middle], flags=0),
        _answer(sender, message, data[middle:], offset=middle),
    )


def _response_case(name, **changes):
    """Add a case with a changed segment header of a response."""
    @case(f"response-{name}", "closed", by_name_only=True)
    def run(sender):
        message = _await_request(sender)
        sender.send(sender.changed(
            _answer(sender, message, _right(message)), **changes
        ))


_response_case("version-2", version=2)
_response_case("offset-1", offset=1)
_response_case("transmit-error", flags=wire.END | wire.TRANSMIT_ERROR)


def _length_case(name, more):
    """Add a case with more or fewer bytes than requested."""
    @case(f"response-{name}", "closed", by_name_only=True)
    def run(sender):
        message = _await_request(sender)
        data = pattern(0, max(0, message.rdma.length + more))
        sender.send(_answer(sender, message, data))


@case("response-immediate", "open", by_name_only=True)
def _response_immediate(sender):
    """A flag without a meaning in responses."""
    message = _await_request(sender)
    flags = wire.END | wire.IMMEDIATE
    sender.send(_answer(sender, message, _right(message), flags=flags))


_length_case("longer", 1)
_length_case("shorter", -1)
_length_case("empty", -(1 << 32))


def _rdma_case(field, change):
    """Add cases with another RDMA header: in the first or second segment."""
    def other(message):
        value = getattr(message.rdma, field) ^ change
        return replace(message.rdma, **{field: value})

    @case(f"response-other-{field}", "closed", by_name_only=True)
    def run(sender):
        message = _await_request(sender)
        sender.send(_answer(sender, message, _right(message), other(message)))

    @case(f"response-changes-{field}", "closed", by_name_only=True)
    def run_in_second(sender):
        message = _await_request(sender)
        first, second = _in_two(sender, message)
        sender.send(first, replace(second, rdma=other(message)))


_rdma_case("address", 4096)
_rdma_case("handle", 1)
_rdma_case("length", 1 << 10)


@case("response-other-number", "closed", by_name_only=True)
def _response_other_number(sender):
    """A Read Response with a number that no request has."""
    message = _await_request(sender)
    number = wire.after(message.number, 1000)
    sender.send(_answer(sender, message, _right(message), number=number))


@case("response-refused", "closed", by_name_only=True)
def _response_refused(sender):
    """A valid refusal, which ends the connection."""
    message = _await_request(sender)
    flags = wire.END | wire.TRANSMIT_ERROR
    sender.send(_answer(sender, message, b"", flags=flags))


@case("response-twice", "closed", by_name_only=True)
def _response_twice(sender):
    """A valid response, sent twice."""
    message = _await_request(sender)
    answer = _answer(sender, message, _right(message))
    sender.send(answer, answer)


@case("response-half", "closed", by_name_only=True)
def _response_half(sender):
    """Only the first of two segments."""
    sender.send(_in_two(sender, _await_request(sender))[0])


@case("response-never", "closed", by_name_only=True)
def _response_never(sender):
    """No response."""
    _await_request(sender)
