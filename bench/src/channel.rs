//! The messages by which the two ends agree, over a VI of their own.
//!
//! The measuring end asks and the answering end answers, one question at a time.
//! Questions are numbered; one that is not answered is asked again, and one that
//! was answered already gets the same answer again. So the agreement survives
//! what the benchmarks do on purpose: overrun a port that then loses frames.
//! Messages are JSON: they cross between rounds, never during one.

use std::time::{Duration, Instant};

use fcvi_frame::{Discriminator, NetAddress};
use pmd_port::MacBytes;
use serde::{Deserialize, Serialize};

use crate::connections::{Admitted, Round};
use crate::control::RawPlace;
use crate::control::stream::StreamRound;
use crate::endpoint::{Endpoint, Reaped, RemoteMemory, Shape, is_flushed, status_text};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::plan::{Benchmark, Frames, Level, Test};

/// Both ends must speak the same version of these messages.
pub(crate) const VERSION: u32 = 6;

/// The longest message.
const MESSAGE_BYTES: u32 = 1024;

/// Bytes before the JSON: the number of the question.
const NUMBER_BYTES: usize = 4;

/// Receive descriptors that wait for messages: more than a question is repeated.
const DESCRIPTORS: u32 = 32;

/// How long an answer may take, on a machine that does other things.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often an end that waits asks whether the other one is gone.
const QUESTION_EVERY: Duration = Duration::from_millis(1);

/// A question is repeated after so long, then after twice as long each time ...
const REPEAT_FIRST: Duration = Duration::from_millis(20);

/// ... up to this.
const REPEAT_MAX: Duration = Duration::from_secs(1);

/// Empty looks at the queue between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 256;

/// A round on the raw port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawRound {
    /// What is measured.
    pub(crate) benchmark: Benchmark,
    /// The frames of one message.
    pub(crate) frames: Frames,
    /// Where answers go.
    pub(crate) mac: MacBytes,
}

/// What the answering end saw of a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Messages that arrived whole.
    pub(crate) delivered: u64,
    /// Messages that arrived after the first reading of the clock.
    pub(crate) timed: u64,
    /// Time that these took.
    pub(crate) elapsed_ns: u64,
    /// Why the round ended early, if it did.
    pub(crate) broken: Option<String>,
}

/// A message between the ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// First word of the measuring end.
    Hello { version: u32 },
    /// Make an endpoint for a test and wait for its connection; `memory` is the asker's. One that
    /// joins is a further connection of the open test.
    Open {
        test: Test,
        number: u32,
        memory: RemoteMemory,
        joins: bool,
    },
    /// Begin a round of the open test.
    Round,
    /// The asker sent its last message of the round, so many since the connection began: what was seen?
    Stop { sent: u64 },
    /// Close the open test.
    Close,
    /// Keep the open test, which carries nothing any more, until the run is over.
    Keep,
    /// Open the raw port, if it is not, and tell where it is.
    RawOpen,
    /// Begin a round on the raw port.
    RawRound(RawRound),
    /// The round on the raw port is over: what was seen?
    RawStop,
    /// Begin a round on the raw TCP connection, which ends with a `Stop`.
    StreamRound(StreamRound),
    /// Begin a round of connections.
    Admit(Round),
    /// The round of connections is over: what was seen?
    Admissions,
    /// The run is over.
    Quit,
    /// Done; nothing to tell.
    Ready,
    /// The endpoint of the test is made.
    Opened { memory: RemoteMemory },
    /// The raw port is open.
    RawOpened(RawPlace),
    /// The round is over.
    Finished(Seen),
    /// The round of connections is over.
    Admitted(Admitted),
    /// It cannot be done.
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

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The messages by which the ends agree.
    Control,
    /// The test with this number.
    Data(u32),
    /// It is made and ended.
    Connections,
}

/// Who has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// The end that asks for the connection.
    Asking,
    /// The end that waits for it.
    Waiting,
}

/// Bytes of a discriminator that every transport has room for.
const DISCRIMINATOR_BYTES: usize = 16;

/// The name of an end: what for, who, and of which run.
pub(crate) fn discriminator(tag: &str, purpose: Purpose, party: Party) -> Result<Discriminator> {
    let purpose = match purpose {
        Purpose::Control => "c".to_owned(),
        Purpose::Data(number) => format!("d{number:x}"),
        Purpose::Connections => "n".to_owned(),
    };
    let party = match party {
        Party::Asking => '>',
        Party::Waiting => '.',
    };
    let text = format!("vb{purpose}{party}{tag}");
    Some(text.as_bytes())
        .filter(|bytes| bytes.len() <= DISCRIMINATOR_BYTES)
        .and_then(Discriminator::new)
        .ok_or_else(|| Error::Usage(format!("`{text}` is too long for a discriminator")))
}

/// Asks for a connection until somebody waits there, within the time-out.
///
/// Nobody waits for the first moments, and a stack says so at once; asking
/// again is what the interface leaves to programs.
pub(crate) fn connect(
    endpoint: &Endpoint,
    local: &NetAddress,
    remote: &NetAddress,
    mut wanted: impl FnMut() -> Result<()>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = ANSWER_TIMEOUT.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Error::Peer("does not listen".into()));
        }
        match endpoint.request(local, remote, vipl::Timeout::After(left)) {
            Ok(()) => return Ok(()),
            Err(vipl::VipError::NoMatch) => {
                wanted()?;
                std::thread::yield_now();
            }
            Err(error) => return Err(Error::call("VipConnectRequest", error)),
        }
    }
}

/// One end of the agreement.
pub(crate) struct Channel {
    endpoint: Endpoint,
    next_send: u32,
    sends_pending: u32,
    arrived: Option<Arrived>,
    is_asker: bool,
    /// The question that is open, or was the last.
    number: u32,
    /// The answering end owes nothing.
    is_answered: bool,
    /// Our last message, to be repeated.
    last: Vec<u8>,
}

/// A message that arrived and was not looked into.
#[derive(Clone, Copy)]
struct Arrived {
    index: u32,
    length_bytes: u32,
}

impl Channel {
    /// An unconnected end that asks; its receive descriptors wait already.
    pub(crate) fn asking(nic: &Nic) -> Result<Self> {
        Self::new(nic, true)
    }

    /// An unconnected end that answers.
    pub(crate) fn answering(nic: &Nic) -> Result<Self> {
        Self::new(nic, false)
    }

    fn new(nic: &Nic, is_asker: bool) -> Result<Self> {
        let mut endpoint = Endpoint::new(
            nic,
            &Shape {
                level: Level::Ud,
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
            arrived: None,
            is_asker,
            number: 0,
            is_answered: true,
            last: Vec::with_capacity(MESSAGE_BYTES as usize),
        })
    }

    /// The VI under it, for connecting.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether the last question taken waits for its answer.
    pub(crate) fn owes_answer(&self) -> bool {
        !self.is_answered
    }

    /// Answers the question taken last.
    pub(crate) fn answer(&mut self, message: &Message) -> Result<()> {
        self.is_answered = true;
        self.send(message)
    }

    /// Sends a message under the number of the open question, and keeps it.
    fn send(&mut self, message: &Message) -> Result<()> {
        self.last.clear();
        self.last.extend_from_slice(&self.number.to_be_bytes());
        serde_json::to_writer(&mut self.last, message)
            .map_err(|error| Error::io("a message to the other end", error.into()))?;
        if self.last.len() > MESSAGE_BYTES as usize {
            return Err(Error::Peer(format!(
                "a message of {} bytes is too long to send",
                self.last.len()
            )));
        }
        self.repeat()
    }

    /// Sends the last message, once more or for the first time; allocates nothing.
    fn repeat(&mut self) -> Result<()> {
        self.reap_sends(DESCRIPTORS - 1)?;
        let index = self.next_send;
        self.endpoint.fill_send(index, &self.last);
        self.endpoint.post_send(index, self.last.len() as u32)?;
        self.next_send = (index + 1) % DESCRIPTORS;
        self.sends_pending += 1;
        self.reap_sends(0)
    }

    /// Waits until at most `pending` sends are under way.
    fn reap_sends(&mut self, pending: u32) -> Result<()> {
        let start = Instant::now();
        while self.sends_pending > pending {
            match self.endpoint.reap_send()? {
                Reaped::Done { .. } => self.sends_pending -= 1,
                Reaped::Failed { status, .. } => return Err(gone(status)),
                Reaped::Nothing if start.elapsed() > ANSWER_TIMEOUT => {
                    return Err(Error::Peer("takes no message".into()));
                }
                Reaped::Nothing => {}
            }
        }
        Ok(())
    }

    /// Whether a message is there that was not there before; allocates nothing.
    pub(crate) fn has_message(&mut self) -> Result<bool> {
        while self.arrived.is_none() {
            match self.endpoint.reap_recv()? {
                Reaped::Nothing => break,
                Reaped::Failed { index, status } if !is_flushed(status) => {
                    // Lost on the way, as far as the program is concerned.
                    self.endpoint.post_recv(index)?;
                }
                Reaped::Failed { status, .. } => return Err(gone(status)),
                Reaped::Done {
                    index,
                    length_bytes,
                } => self.sort(Arrived {
                    index,
                    length_bytes,
                })?,
            }
        }
        Ok(self.arrived.is_some())
    }

    /// Keeps what is new, repeats the answer to what is old.
    fn sort(&mut self, arrived: Arrived) -> Result<()> {
        let number = self.number_of(arrived);
        let expected = if self.is_asker {
            self.number
        } else {
            self.number.wrapping_add(1)
        };
        if number == Some(expected) {
            self.arrived = Some(arrived);
            return Ok(());
        }
        self.endpoint.post_recv(arrived.index)?;
        if !self.is_asker && self.is_answered && number == Some(self.number) {
            self.repeat()?;
        }
        Ok(())
    }

    fn number_of(&self, arrived: Arrived) -> Option<u32> {
        let mut number = [0; NUMBER_BYTES];
        if (arrived.length_bytes as usize) < NUMBER_BYTES {
            return None;
        }
        self.endpoint.peek_recv(arrived.index, &mut number);
        Some(u32::from_be_bytes(number))
    }

    /// Takes a message if one is there.
    fn try_receive(&mut self) -> Result<Option<Message>> {
        if !self.has_message()? {
            return Ok(None);
        }
        let Some(arrived) = self.arrived.take() else {
            return Ok(None);
        };
        let bytes = self.endpoint.copy_recv(arrived.index, arrived.length_bytes);
        self.endpoint.post_recv(arrived.index)?;
        if !self.is_asker {
            self.number = self.number.wrapping_add(1);
            self.is_answered = false;
        }
        serde_json::from_slice(bytes.get(NUMBER_BYTES..).unwrap_or_default())
            .map(Some)
            .map_err(|error| Error::Peer(format!("said what is no message: {error}")))
    }

    /// Waits for a message; `wanted` is asked now and then and may end the wait.
    pub(crate) fn receive(
        &mut self,
        timeout: Option<Duration>,
        mut wanted: impl FnMut() -> Result<()>,
    ) -> Result<Message> {
        let start = Instant::now();
        let mut pause = REPEAT_FIRST;
        let mut next_repeat = pause;
        let mut next_question = QUESTION_EVERY;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if let Some(message) = self.try_receive()? {
                    return Ok(message);
                }
            }
            let waited = start.elapsed();
            if timeout.is_some_and(|timeout| waited > timeout) {
                return Err(Error::Peer("does not answer".into()));
            }
            if waited >= next_question {
                next_question = waited + QUESTION_EVERY;
                if !self.endpoint.is_connected()? {
                    return Err(Error::Broken("the other end is gone".into()));
                }
            }
            if self.is_asker && waited >= next_repeat {
                self.repeat()?;
                pause = (pause * 2).min(REPEAT_MAX);
                next_repeat = waited + pause;
            }
            wanted()?;
        }
    }

    /// Takes the message that is there, which must be the asker's last word of a round.
    pub(crate) fn take_stop(&mut self) -> Result<u64> {
        match self.try_receive()? {
            Some(Message::Stop { sent }) => Ok(sent),
            Some(message) => Err(out_of_place(&message)),
            None => Err(Error::Peer("said nothing".into())),
        }
    }

    /// Waits for the asker's last word of a round.
    pub(crate) fn wait_for_stop(&mut self) -> Result<u64> {
        match self.receive(Some(ANSWER_TIMEOUT), || Ok(()))? {
            Message::Stop { sent } => Ok(sent),
            message => Err(out_of_place(&message)),
        }
    }

    /// Asks, and waits for the answer; a refusal is an error.
    pub(crate) fn ask(&mut self, message: &Message) -> Result<Message> {
        self.number = self.number.wrapping_add(1);
        self.send(message)?;
        match self.receive(Some(ANSWER_TIMEOUT), || Ok(()))? {
            Message::Refused(reason) => Err(Error::Peer(reason)),
            answer => Ok(answer),
        }
    }

    /// Asks for something to which the answer is `Ready`.
    pub(crate) fn tell(&mut self, message: &Message) -> Result<()> {
        match self.ask(message)? {
            Message::Ready => Ok(()),
            answer => Err(out_of_place(&answer)),
        }
    }

    /// The run is over: the other end is let go. It may be gone without its last word, which may
    /// be lost.
    pub(crate) fn quit(&mut self) -> Result<()> {
        match self.tell(&Message::Quit) {
            Ok(()) | Err(Error::Broken(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks what was seen of a round.
    pub(crate) fn ask_seen(&mut self, message: &Message) -> Result<Seen> {
        match self.ask(message)? {
            Message::Finished(seen) => Ok(seen),
            answer => Err(out_of_place(&answer)),
        }
    }
}

/// The error for a message that is not expected in this state.
pub(crate) fn out_of_place(message: &Message) -> Error {
    let name = message.name();
    Error::Peer(format!("sent an unexpected message: {name}"))
}

#[cold]
fn gone(status: u32) -> Error {
    if is_flushed(status) {
        Error::Broken("the other end is gone".into())
    } else {
        Error::Broken(status_text(status))
    }
}

#[cfg(test)]
mod tests;
