//! A line for each connection at each side, and what the lines of both sides must have in common.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

use vipl::ReliabilityLevel;

use crate::Failure;
use crate::plan::{Shape, Side};
use crate::slot::lock;

/// Which side has ended a connection, as one side sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    Us,
    Peer,
}

/// One connection at one side. Messages are sends and RDMA writes with immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) slot: u16,
    pub(crate) connection: u32,
    pub(crate) ended_by: EndedBy,
    /// Messages posted, and completed without error.
    pub(crate) posted: u32,
    pub(crate) sent: u32,
    /// RDMA writes without immediate data that completed without error.
    pub(crate) silent_writes: u32,
    pub(crate) sends_flushed: u32,
    pub(crate) received: u32,
    /// One more than the number of the last message that arrived.
    pub(crate) next: u32,
    pub(crate) receives_flushed: u32,
    pub(crate) bytes: u64,
}

impl Record {
    fn line(&self) -> String {
        let ended_by = match self.ended_by {
            EndedBy::Us => 0,
            EndedBy::Peer => 1,
        };
        format!(
            "{} {} {ended_by} {} {} {} {} {} {} {} {}\n",
            self.slot,
            self.connection,
            self.posted,
            self.sent,
            self.silent_writes,
            self.sends_flushed,
            self.received,
            self.next,
            self.receives_flushed,
            self.bytes,
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<u64> = line
            .split(' ')
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        let [
            slot,
            connection,
            ended_by,
            posted,
            sent,
            silent,
            flushed,
            received,
            next,
            receives_flushed,
            bytes,
        ] = *words.as_slice()
        else {
            return None;
        };
        Some(Self {
            slot: u16::try_from(slot).ok()?,
            connection: u32::try_from(connection).ok()?,
            ended_by: if ended_by == 0 {
                EndedBy::Us
            } else {
                EndedBy::Peer
            },
            posted: u32::try_from(posted).ok()?,
            sent: u32::try_from(sent).ok()?,
            silent_writes: u32::try_from(silent).ok()?,
            sends_flushed: u32::try_from(flushed).ok()?,
            received: u32::try_from(received).ok()?,
            next: u32::try_from(next).ok()?,
            receives_flushed: u32::try_from(receives_flushed).ok()?,
            bytes,
        })
    }
}

/// The books of this side, written as they grow.
pub(crate) struct Books(Mutex<BufWriter<File>>);

impl Books {
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(Mutex::new(BufWriter::new(file))))
    }

    pub(crate) fn enter(&self, record: &Record) -> Result<(), Failure> {
        Ok(lock(&self.0).write_all(record.line().as_bytes())?)
    }

    pub(crate) fn close(self) -> Result<(), Failure> {
        let mut file = self.0.into_inner().map_err(|_| "the books are torn")?;
        Ok(file.flush()?)
    }
}

type Ledger = HashMap<(u16, u32), Record>;

fn read(path: &Path) -> Result<Ledger, Failure> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut ledger = Ledger::new();
    for line in BufReader::new(file).lines() {
        let line = line?;
        let record = Record::parse(&line)
            .ok_or_else(|| format!("{}: not a record: {line}", path.display()))?;
        if let Some(twice) = ledger.insert((record.slot, record.connection), record) {
            return Err(format!(
                "{}: two records of one connection: {record:?}, {twice:?}",
                path.display()
            )
            .into());
        }
    }
    Ok(ledger)
}

/// Whether frames can be lost between the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Lossless,
    Lossy,
}

/// What the two books say together.
#[derive(Default)]
struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    fn add(&mut self, name: &'static str, number: impl Into<u64>) {
        *self.0.entry(name).or_default() += number.into();
    }
}

/// Checks the books of both sides against each other, and prints what they add up to.
pub(crate) fn judge(left: &Path, right: &Path, wire: Wire) -> Result<(), Failure> {
    let (left, right) = (read(left)?, read(right)?);
    let mut totals = Totals::default();
    for (side, ours, theirs) in [(Side::Left, &left, &right), (Side::Right, &right, &left)] {
        for (name, record) in ours {
            judge_sender(record, theirs.get(name), wire, &mut totals)
                .map_err(|error| format!("connection {name:?}, from {}: {error}", side.name()))?;
        }
    }
    let both = left.keys().filter(|name| right.contains_key(*name)).count();
    totals.add("connections", both as u64);
    for (name, number) in &totals.0 {
        println!("count {name} {number}");
    }
    // A run in which nothing happened proves nothing.
    for name in [
        "connections",
        "messages",
        "unreliable_messages",
        "silent_writes",
        "sends_flushed",
        "ended_here",
    ] {
        if totals.0.get(name).is_none_or(|number| *number == 0) {
            return Err(format!("no {name} in the whole run").into());
        }
    }
    Ok(())
}

/// What one side sent, against what the other received.
fn judge_sender(
    sender: &Record,
    receiver: Option<&Record>,
    wire: Wire,
    totals: &mut Totals,
) -> Result<(), Failure> {
    let shape = Shape::new(sender.slot);
    let Some(receiver) = receiver else {
        // The other side gave up before it knew that the connection stood.
        totals.add("connections_of_one_side", 1u64);
        if sender.received > 0 {
            return Err(format!("it received from a side without a connection: {sender:?}").into());
        }
        return Ok(());
    };
    let wrong = |what: &str| -> Result<(), Failure> {
        Err(format!("{what}: {sender:?}, {receiver:?}").into())
    };
    if sender.sent > sender.posted {
        return wrong("more messages were sent than posted");
    }
    if receiver.received > sender.sent {
        return wrong("more messages arrived than were sent");
    }
    if receiver.next > sender.posted {
        return wrong("a message arrived that was not posted");
    }
    if shape.is_reliable() && receiver.received != receiver.next {
        return wrong("what arrived has gaps");
    }
    // Whoever ends a connection has its last frames in front of the news of that.
    let is_all_there = sender.ended_by == EndedBy::Us && receiver.ended_by == EndedBy::Peer;
    if wire == Wire::Lossless && is_all_there && receiver.received != sender.sent {
        return wrong("messages that were sent before the end did not arrive");
    }
    let unarrived = sender.sent - receiver.received;
    match shape.level {
        ReliabilityLevel::Unreliable => {
            totals.add("unreliable_messages", receiver.received);
            totals.add("unreliable_messages_unarrived", unarrived);
        }
        ReliabilityLevel::ReliableDelivery | ReliabilityLevel::ReliableReception => {
            totals.add("messages", receiver.received);
            totals.add("messages_unarrived", unarrived);
        }
    }
    totals.add("bytes", receiver.bytes);
    totals.add("silent_writes", sender.silent_writes);
    totals.add("sends_flushed", sender.sends_flushed);
    totals.add("receives_flushed", receiver.receives_flushed);
    totals.add("ended_here", u64::from(sender.ended_by == EndedBy::Us));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Record = Record {
        slot: 0,
        connection: 1,
        ended_by: EndedBy::Us,
        posted: 9,
        sent: 8,
        silent_writes: 2,
        sends_flushed: 1,
        received: 0,
        next: 0,
        receives_flushed: 3,
        bytes: 77,
    };
    const PEER: Record = Record {
        ended_by: EndedBy::Peer,
        received: 8,
        next: 8,
        ..GOOD
    };

    fn verdict(sender: &Record, receiver: Option<&Record>) -> bool {
        judge_sender(sender, receiver, Wire::Lossless, &mut Totals::default()).is_ok()
    }

    #[test]
    fn a_record_comes_back_from_its_line() {
        assert_eq!(Record::parse(GOOD.line().trim_end()), Some(GOOD));
        assert_eq!(Record::parse("1 2 3"), None);
    }

    #[test]
    fn messages_that_are_lost_doubled_or_made_up_are_noticed() {
        assert!(verdict(&GOOD, Some(&PEER)));
        let lost = Record {
            received: 7,
            next: 7,
            ..PEER
        };
        assert!(
            !verdict(&GOOD, Some(&lost)),
            "one of those sent before the end"
        );
        let at_the_end = Record {
            ended_by: EndedBy::Us,
            ..lost
        };
        assert!(
            verdict(&GOOD, Some(&at_the_end)),
            "it ended the connection itself"
        );
        assert!(
            !verdict(
                &GOOD,
                Some(&Record {
                    received: 7,
                    ..PEER
                })
            ),
            "a gap"
        );
        assert!(
            !verdict(
                &GOOD,
                Some(&Record {
                    received: 9,
                    next: 9,
                    ..PEER
                })
            ),
            "not sent"
        );
        assert!(
            !verdict(&Record { sent: 10, ..GOOD }, Some(&PEER)),
            "not posted"
        );
        assert!(verdict(&GOOD, None), "the other side never knew of it");
        assert!(!verdict(&PEER, None), "messages from nowhere");
    }

    #[test]
    fn an_unreliable_connection_may_lose_messages() {
        let sender = Record {
            slot: 1,
            ended_by: EndedBy::Peer,
            ..GOOD
        };
        assert!(verdict(
            &sender,
            Some(&Record {
                slot: 1,
                received: 5,
                next: 7,
                ..PEER
            })
        ));
        assert!(!verdict(
            &sender,
            Some(&Record {
                slot: 1,
                received: 5,
                next: 10,
                ..PEER
            })
        ));
    }
}
