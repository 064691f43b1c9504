//! Control channel between client and server, over an unreliable VI of its own.
//!
//! The client sends requests and the server responds, one request at a time. Requests are numbered; the client repeats
//! a request without a response, and the server repeats the response to a repeated request. So the channel survives
//! frame loss, which benchmarks cause on purpose when they overrun a port. Messages are JSON: they are sent between
//! rounds, never during one.

use std::time::{Duration, Instant};

use pmd_port::MacBytes;
use serde::{Deserialize, Serialize};
use vi_types::{Discriminator, NetAddress, ReliabilityLevel};

use crate::connections::{AcceptResult, ConnectionRound};
use crate::endpoint::{Endpoint, EndpointLayout, Reaped, RemoteMemory, is_flushed, status_text};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::plan::{Benchmark, Frames, Test};
use crate::raw_control::RawAddress;
use crate::raw_control::tcp::StreamRound;

/// Version of the protocol, which must be the same at both ends.
pub(crate) const VERSION: u32 = 6;

/// Maximum message size in bytes.
const MESSAGE_BYTES: u32 = 1024;

/// Bytes before the JSON: the request number.
const NUMBER_BYTES: usize = 4;

/// Posted receive descriptors: more than the repetitions of a request.
const DESCRIPTORS: u32 = 32;

/// Timeout for a response, on a busy machine.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which a waiting end checks that the VI is connected.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(1);

/// Delay before the first repetition of a request; doubled for each further one, up to `MAX_REPEAT_INTERVAL`.
const MIN_REPEAT_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum delay between repetitions of a request.
const MAX_REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Unsuccessful polls of the queue per reading of the clock.
const POLLS_PER_CLOCK: u32 = 256;

/// Parameters of a round on the raw port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawRound {
    /// The benchmark.
    pub(crate) benchmark: Benchmark,
    /// The frames of one message.
    pub(crate) frames: Frames,
    /// MAC address of the peer, the destination of frames.
    pub(crate) mac: MacBytes,
}

/// Result of a round at the receiving end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundResult {
    /// Messages that arrived completely.
    pub(crate) delivered: u64,
    /// Messages that arrived after the first reading of the clock.
    pub(crate) timed: u64,
    /// Time from the first reading of the clock to the last message, in ns.
    pub(crate) elapsed_ns: u64,
    /// Reason for which the round ended early.
    pub(crate) broken: Option<String>,
}

/// A control message. Names of variants and fields are part of the protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// First request of the client.
    Hello { version: u32 },
    /// Create an endpoint for a test and accept its connection; `memory` is the client's. With `joins` it is an
    /// additional connection of the open test.
    Open {
        test: Test,
        number: u32,
        memory: RemoteMemory,
        joins: bool,
    },
    /// Begin a round of the open test.
    Round,
    /// End the round and report its result; the client has sent `sent` messages since the connections were established.
    Stop { sent: u64 },
    /// Close the open test.
    Close,
    /// Keep the connection of the open test, without traffic, until the run is over.
    Keep,
    /// Open the raw port, unless it is open, and report its address.
    RawOpen,
    /// Begin a round on the raw port.
    RawRound(RawRound),
    /// Report the result of the round on the raw port.
    RawStop,
    /// Begin a round on the raw TCP connection; `Stop` ends it.
    StreamRound(StreamRound),
    /// Begin a round of accepting connections.
    Admit(ConnectionRound),
    /// Report the result of the round of accepting connections.
    Admissions,
    /// The run is over.
    Quit,
    /// The request was executed, or the round can begin.
    Ready,
    /// The endpoint of the test is created.
    Opened { memory: RemoteMemory },
    /// The raw port is open at this address.
    RawOpened(RawAddress),
    /// Result of the round.
    Finished(RoundResult),
    /// Result of the round of accepting connections.
    Admitted(AcceptResult),
    /// The request failed with this error.
    Refused(String),
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Open { .. } => "Open",
            Self::Round => "Round",
            Self::Stop { .. } => "Stop",
            Self::Close => "Close",
            Self::Keep => "Keep",
            Self::RawOpen => "RawOpen",
            Self::RawRound(_) => "RawRound",
            Self::RawStop => "RawStop",
            Self::StreamRound(_) => "StreamRound",
            Self::Admit(_) => "Admit",
            Self::Admissions => "Admissions",
            Self::Quit => "Quit",
            Self::Ready => "Ready",
            Self::Opened { .. } => "Opened",
            Self::RawOpened(_) => "RawOpened",
            Self::Finished(_) => "Finished",
            Self::Admitted(_) => "Admitted",
            Self::Refused(_) => "Refused",
        }
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The control channel.
    Control,
    /// The test with this number.
    Data(u32),
    /// Connections of the `connect` benchmark.
    Connections,
}

/// Role in connection establishment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectRole {
    /// The end that requests the connection.
    Requester,
    /// The end that accepts the connection.
    Listener,
}

/// Maximum length in bytes of a discriminator that every transport supports.
const DISCRIMINATOR_BYTES: usize = 16;

/// Returns the discriminator of an end, from purpose, role and the tag of the run.
pub(crate) fn discriminator(
    tag: &str,
    purpose: Purpose,
    role: ConnectRole,
) -> Result<Discriminator> {
    let purpose = match purpose {
        Purpose::Control => "c".to_owned(),
        Purpose::Data(number) => format!("d{number:x}"),
        Purpose::Connections => "n".to_owned(),
    };
    let role = match role {
        ConnectRole::Requester => '>',
        ConnectRole::Listener => '.',
    };
    let text = format!("vb{purpose}{role}{tag}");
    Some(text.as_bytes())
        .filter(|bytes| bytes.len() <= DISCRIMINATOR_BYTES)
        .and_then(Discriminator::new)
        .ok_or_else(|| Error::Usage(format!("`{text}` is too long for a discriminator")))
}

/// Requests a connection until the server accepts it, up to `RESPONSE_TIMEOUT`.
///
/// At first the server may not listen yet; the stack then rejects the request at once (`VIP_NO_MATCH`), and retrying
/// is up to the program.
pub(crate) fn connect(
    endpoint: &Endpoint,
    local: &NetAddress,
    remote: &NetAddress,
    mut check_stop: impl FnMut() -> Result<()>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = RESPONSE_TIMEOUT.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Error::Peer(
                "timed out: no listener for the connection".into(),
            ));
        }
        match endpoint.request(local, remote, vipl::Timeout::After(left)) {
            Ok(()) => return Ok(()),
            Err(vipl::VipError::NoMatch) => {
                check_stop()?;
                std::thread::yield_now();
            }
            Err(error) => return Err(Error::call("VipConnectRequest", error)),
        }
    }
}

/// One end of the control channel.
pub(crate) struct Channel {
    endpoint: Endpoint,
    next_send: u32,
    sends_pending: u32,
    received: Option<ReceivedMessage>,
    is_client: bool,
    /// Number of the current or last request.
    number: u32,
    /// Server only: no request is waiting for a response.
    is_answered: bool,
    /// The last message sent, for repetition.
    last: Vec<u8>,
}

/// A received message that is not parsed yet.
#[derive(Clone, Copy)]
struct ReceivedMessage {
    index: u32,
    length_bytes: u32,
}

impl Channel {
    /// Creates the unconnected end of the client, with posted receive descriptors.
    pub(crate) fn for_client(nic: &Nic) -> Result<Self> {
        Self::new(nic, true)
    }

    /// Creates the unconnected end of the server, with posted receive descriptors.
    pub(crate) fn for_server(nic: &Nic) -> Result<Self> {
        Self::new(nic, false)
    }

    fn new(nic: &Nic, is_client: bool) -> Result<Self> {
        let mut endpoint = Endpoint::new(
            nic,
            &EndpointLayout {
                level: ReliabilityLevel::UnreliableDelivery,
                send_descriptors: DESCRIPTORS,
                send_buffers: DESCRIPTORS,
                send_bytes: MESSAGE_BYTES,
                recv_descriptors: DESCRIPTORS,
                recv_buffers: DESCRIPTORS,
                recv_bytes: MESSAGE_BYTES,
            },
        )?;
        for index in 0..DESCRIPTORS {
            endpoint.post_recv(index)?;
        }
        Ok(Self {
            endpoint,
            next_send: 0,
            sends_pending: 0,
            received: None,
            is_client,
            number: 0,
            is_answered: true,
            last: Vec::with_capacity(MESSAGE_BYTES as usize),
        })
    }

    /// Returns the endpoint, for connection establishment.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns whether the last received request is waiting for its response.
    pub(crate) fn has_pending_request(&self) -> bool {
        !self.is_answered
    }

    /// Responds to the last received request.
    pub(crate) fn respond(&mut self, message: &Message) -> Result<()> {
        self.is_answered = true;
        self.send(message)
    }

    /// Sends a message with the current request number, and keeps it for repetition.
    fn send(&mut self, message: &Message) -> Result<()> {
        self.last.clear();
        self.last.extend_from_slice(&self.number.to_be_bytes());
        serde_json::to_writer(&mut self.last, message)
            .map_err(|error| Error::io("encoding a control message", error.into()))?;
        if self.last.len() > MESSAGE_BYTES as usize {
            return Err(Error::Peer(format!(
                "a control message of {} bytes exceeds {MESSAGE_BYTES} bytes",
                self.last.len()
            )));
        }
        self.repeat()
    }

    /// Sends or repeats the last message; does not allocate.
    fn repeat(&mut self) -> Result<()> {
        self.reap_sends(DESCRIPTORS - 1)?;
        let index = self.next_send;
        self.endpoint.fill_send(index, &self.last);
        self.endpoint.post_send(index, self.last.len() as u32)?;
        self.next_send = (index + 1) % DESCRIPTORS;
        self.sends_pending += 1;
        self.reap_sends(0)
    }

    /// Reaps sends until at most `pending` are outstanding.
    fn reap_sends(&mut self, pending: u32) -> Result<()> {
        let start = Instant::now();
        while self.sends_pending > pending {
            match self.endpoint.reap_send()? {
                Reaped::Done { .. } => self.sends_pending -= 1,
                Reaped::Failed { status, .. } => return Err(connection_ended(status)),
                Reaped::Nothing if start.elapsed() > RESPONSE_TIMEOUT => {
                    return Err(Error::Peer(
                        "timed out: a control message was not sent".into(),
                    ));
                }
                Reaped::Nothing => {}
            }
        }
        Ok(())
    }

    /// Polls for a new message, and returns whether there is one; does not allocate.
    pub(crate) fn has_message(&mut self) -> Result<bool> {
        while self.received.is_none() {
            match self.endpoint.reap_recv()? {
                Reaped::Nothing => break,
                Reaped::Failed { index, status } if !is_flushed(status) => {
                    // Treated as a lost message.
                    self.endpoint.post_recv(index)?;
                }
                Reaped::Failed { status, .. } => return Err(connection_ended(status)),
                Reaped::Done {
                    index,
                    length_bytes,
                } => self.accept_or_repeat(ReceivedMessage {
                    index,
                    length_bytes,
                })?,
            }
        }
        Ok(self.received.is_some())
    }

    /// Keeps a new message; repeats the response to a repeated request.
    fn accept_or_repeat(&mut self, received: ReceivedMessage) -> Result<()> {
        let number = self.number_of(received);
        let expected = if self.is_client {
            self.number
        } else {
            self.number.wrapping_add(1)
        };
        if number == Some(expected) {
            self.received = Some(received);
            return Ok(());
        }
        self.endpoint.post_recv(received.index)?;
        if !self.is_client && self.is_answered && number == Some(self.number) {
            self.repeat()?;
        }
        Ok(())
    }

    fn number_of(&self, received: ReceivedMessage) -> Option<u32> {
        let mut number = [0; NUMBER_BYTES];
        if (received.length_bytes as usize) < NUMBER_BYTES {
            return None;
        }
        self.endpoint.peek_recv(received.index, &mut number);
        Some(u32::from_be_bytes(number))
    }

    /// Takes and parses the received message, if there is one.
    fn try_receive(&mut self) -> Result<Option<Message>> {
        if !self.has_message()? {
            return Ok(None);
        }
        let Some(received) = self.received.take() else {
            return Ok(None);
        };
        let bytes = self
            .endpoint
            .copy_recv(received.index, received.length_bytes);
        self.endpoint.post_recv(received.index)?;
        if !self.is_client {
            self.number = self.number.wrapping_add(1);
            self.is_answered = false;
        }
        serde_json::from_slice(bytes.get(NUMBER_BYTES..).unwrap_or_default())
            .map(Some)
            .map_err(|error| Error::Peer(format!("invalid control message: {error}")))
    }

    /// Waits for a message, without limit if `timeout` is `None`; an error of `check_stop`, called regularly, ends the
    /// wait.
    pub(crate) fn receive(
        &mut self,
        timeout: Option<Duration>,
        mut check_stop: impl FnMut() -> Result<()>,
    ) -> Result<Message> {
        let start = Instant::now();
        let mut pause = MIN_REPEAT_INTERVAL;
        let mut next_repeat = pause;
        let mut next_liveness_check = LIVENESS_INTERVAL;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if let Some(message) = self.try_receive()? {
                    return Ok(message);
                }
            }
            let waited = start.elapsed();
            if timeout.is_some_and(|timeout| waited > timeout) {
                return Err(Error::Peer(
                    "timed out: no response on the control channel".into(),
                ));
            }
            if waited >= next_liveness_check {
                next_liveness_check = waited + LIVENESS_INTERVAL;
                if !self.endpoint.is_connected()? {
                    return Err(Error::Broken(
                        "control channel closed by the peer or lost".into(),
                    ));
                }
            }
            if self.is_client && waited >= next_repeat {
                self.repeat()?;
                pause = (pause * 2).min(MAX_REPEAT_INTERVAL);
                next_repeat = waited + pause;
            }
            check_stop()?;
        }
    }

    /// Takes the received message, which must be `Stop`, and returns the number of messages that the client has sent.
    pub(crate) fn take_stop(&mut self) -> Result<u64> {
        match self.try_receive()? {
            Some(Message::Stop { sent }) => Ok(sent),
            Some(message) => Err(unexpected_message(&message)),
            None => Err(Error::Peer("no message received".into())),
        }
    }

    /// Waits for `Stop`, and returns the number of messages that the client has sent.
    pub(crate) fn wait_for_stop(&mut self) -> Result<u64> {
        match self.receive(Some(RESPONSE_TIMEOUT), || Ok(()))? {
            Message::Stop { sent } => Ok(sent),
            message => Err(unexpected_message(&message)),
        }
    }

    /// Sends a request and waits for its response; `Refused` is returned as an error.
    pub(crate) fn request(&mut self, message: &Message) -> Result<Message> {
        self.number = self.number.wrapping_add(1);
        self.send(message)?;
        match self.receive(Some(RESPONSE_TIMEOUT), || Ok(()))? {
            Message::Refused(reason) => Err(Error::Peer(reason)),
            response => Ok(response),
        }
    }

    /// Sends a request whose response is `Ready`.
    pub(crate) fn command(&mut self, message: &Message) -> Result<()> {
        match self.request(message)? {
            Message::Ready => Ok(()),
            response => Err(unexpected_message(&response)),
        }
    }

    /// Ends the run. The server disconnects after its response, which may be lost; a lost connection is not an error.
    pub(crate) fn quit(&mut self) -> Result<()> {
        match self.command(&Message::Quit) {
            Ok(()) | Err(Error::Broken(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends a request whose response is the result of a round.
    pub(crate) fn request_result(&mut self, message: &Message) -> Result<RoundResult> {
        match self.request(message)? {
            Message::Finished(result) => Ok(result),
            response => Err(unexpected_message(&response)),
        }
    }
}

/// Returns the error for a message that is not expected in the current state.
pub(crate) fn unexpected_message(message: &Message) -> Error {
    let name = message.name();
    Error::Peer(format!("unexpected control message: {name}"))
}

#[cold]
fn connection_ended(status: u32) -> Error {
    if is_flushed(status) {
        Error::Broken("control channel closed by the peer or lost".into())
    } else {
        Error::Broken(status_text(status))
    }
}

#[cfg(test)]
mod tests;
