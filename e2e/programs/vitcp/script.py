"""The steps of a script on a connection."""

import inspect

from common import Failure, describe, pattern, report
from session import REGION
from wire import Kind


class Script:
    """The steps of the command line."""

    def __init__(self, session):
        self.session = session
        self.open = True

    def run(self, steps):
        """Run all steps, then close if none of them did."""
        for step in steps:
            name, *values = step.split(":")
            getattr(self, "do_" + name.replace("-", "_"))(*values)
        if self.open:
            self.do_close()

    @staticmethod
    def check(steps):
        """Raise Failure if a step is unknown or has wrong arguments."""
        for step in steps:
            name, *values = step.split(":")
            method = getattr(Script, "do_" + name.replace("-", "_"), None)
            if method is None:
                raise Failure(f"unknown step {step!r}")
            try:
                inspect.signature(method).bind(None, *values)
            except TypeError as error:
                raise Failure(f"step {step!r}: {error}") from None

    def _payload(self, length):
        data = pattern(self.session.serial, int(length))
        self.session.serial += 1
        return data

    def _resolve(self, address, handle):
        """Resolve @ by the first message received."""
        if "@" not in address + handle:
            return int(address, 0), int(handle, 0)
        session = self.session
        session.wait_for(
            lambda: session.region is not None, session.timeout,
            "address and handle",
        )
        if len(session.region) != REGION.size:
            raise Failure("the first message has no address and handle")
        base, known, _length = REGION.unpack(session.region)
        if address.startswith("@"):
            address = base + int(address[1:] or "0", 0)
        else:
            address = int(address, 0)
        return address, known if handle == "@" else int(handle, 0)

    def do_send(self, length, immediate=None):
        if immediate is not None:
            immediate = int(immediate, 0)
        data = self._payload(length)
        self.session.send(data, immediate)
        report(f"sent {describe(data)}")

    def do_sends(self, count, length):
        for _ in range(int(count)):
            self.session.send(self._payload(length))
        report(f"sent {count} messages of {length} bytes")

    def do_recv(self, count, length=None):
        for _ in range(int(count)):
            message = self.session.receive()
            text = f"received {describe(message.payload)}"
            if message.immediate is not None:
                text += f" immediate 0x{message.immediate:08x}"
            report(text)
            if length is not None and len(message.payload) != int(length):
                raise Failure(f"{len(message.payload)} bytes, not {length}")

    def do_expect(self, serial, length, immediate=None):
        message = self.session.receive()
        wanted = pattern(int(serial), int(length))
        if message.payload != wanted:
            raise Failure(
                f"received {describe(message.payload)}, not {describe(wanted)}"
            )
        if immediate is not None:
            immediate = int(immediate, 0)
        if message.immediate != immediate:
            raise Failure(
                f"Immediate Data is {message.immediate}, not {immediate}"
            )
        report(f"received message {serial} of {length} bytes")

    def do_fill(self, serial, offset, length):
        start = int(offset)
        data = pattern(int(serial), int(length))
        self.session.memory[start:start + len(data)] = data

    def do_memory(self, serial, offset, length):
        start = int(offset)
        found = bytes(self.session.memory[start:start + int(length)])
        wanted = pattern(int(serial), int(length))
        if found != wanted:
            raise Failure(
                f"the memory is {describe(found)}, not {describe(wanted)}"
            )
        report(f"memory has message {serial} of {length} bytes")

    def do_fetch(self, address, handle, length, serial):
        remote = self._resolve(address, handle)
        found = self.session.read(*remote, int(length, 0))
        wanted = pattern(int(serial), int(length, 0))
        if found != wanted:
            raise Failure(
                f"read {'nothing' if found is None else describe(found)}, "
                f"not {describe(wanted)}"
            )
        report(f"fetched message {serial} of {length} bytes")

    def do_echo(self, count, length):
        for index in range(int(count)):
            data = self._payload(length)
            self.session.send(data)
            if self.session.receive().payload != data:
                raise Failure(f"echo {index} differs")
        report(f"echoed {count} messages of {length} bytes")

    def do_reflect(self, count):
        for _ in range(int(count)):
            message = self.session.receive()
            self.session.send(message.payload, message.immediate)
        report(f"reflected {count} messages")

    def do_write(self, address, handle, length, immediate=None):
        if immediate is not None:
            immediate = int(immediate, 0)
        address, handle = self._resolve(address, handle)
        data = self._payload(length)
        self.session.write(address, handle, data, immediate)
        report(f"wrote {describe(data)}")

    def do_advertise(self):
        session = self.session
        session.send(REGION.pack(
            session.base, session.handle, len(session.memory)
        ))
        report(f"advertised {len(session.memory)} bytes")

    def do_post(self, count):
        self.session.connection.posted += int(count)
        self.session.flush()
        report(f"posted {self.session.connection.posted % 0x10000}")

    def do_acked(self):
        self.session.wait_acknowledged()
        report("acknowledged")

    def do_report_error(self, vi_error, is_error):
        session = self.session
        message = session.receive()
        session.put(
            Kind.NOP, ack=message.number, vi_error=int(vi_error),
            is_error=int(is_error),
        )
        report(
            f"reported vi {vi_error} is {is_error} of message {message.number}"
        )

    def do_expect_error(self, code, seconds):
        session = self.session
        session.wait_for(
            lambda: session.connection.error is not None, float(seconds),
            f"VI Error Type {code}",
        )
        if session.connection.error[0] != int(code, 0):
            raise Failure(f"VI Error Type is {session.connection.error[0]}")
        self.do_wait_close(seconds)

    def do_wait_close(self, seconds):
        self.session.wait_close(float(seconds))
        self.open = False
        report("closed by the peer")

    def do_close(self):
        self.session.close()
        self.open = False
        report("closed")
