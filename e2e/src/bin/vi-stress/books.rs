//! A line for each connection at each side, and what the lines of both sides must have in common.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

use vipl::ReliabilityLevel;

use crate::Failure;
use crate::events::Refusals;
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
    /// RDMA writes without immediate data that completed without error, and RDMA reads that did.
    pub(crate) silent_writes: u32,
    pub(crate) reads: u32,
    pub(crate) read_bytes: u64,
    /// What was posted for the other side to refuse, and completed with its refusal.
    pub(crate) stray_reads: u32,
    pub(crate) stray_writes: u32,
    pub(crate) refused_reads: u32,
    pub(crate) refused_writes: u32,
    /// What completed with the news that its answer is lost.
    pub(crate) sends_unanswered: u32,
    pub(crate) sends_flushed: u32,
    pub(crate) received: u32,
    /// One more than the number of the last message that arrived.
    pub(crate) next: u32,
    pub(crate) receives_flushed: u32,
    pub(crate) bytes: u64,
}

impl Record {
    fn line(&self) -> String {
        let numbers = [
            self.slot.into(),
            self.connection.into(),
            u64::from(self.ended_by == EndedBy::Peer),
            self.posted.into(),
            self.sent.into(),
            self.silent_writes.into(),
            self.reads.into(),
            self.read_bytes,
            self.stray_reads.into(),
            self.stray_writes.into(),
            self.refused_reads.into(),
            self.refused_writes.into(),
            self.sends_unanswered.into(),
            self.sends_flushed.into(),
            self.received.into(),
            self.next.into(),
            self.receives_flushed.into(),
            self.bytes,
        ];
        numbers.map(|number| number.to_string()).join(" ") + "\n"
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
        let mut next = || words.next().flatten();
        let narrow = |number: Option<u64>| u32::try_from(number?).ok();
        let record = Self {
            slot: u16::try_from(next()?).ok()?,
            connection: narrow(next())?,
            ended_by: if next()? == 0 {
                EndedBy::Us
            } else {
                EndedBy::Peer
            },
            posted: narrow(next())?,
            sent: narrow(next())?,
            silent_writes: narrow(next())?,
            reads: narrow(next())?,
            read_bytes: next()?,
            stray_reads: narrow(next())?,
            stray_writes: narrow(next())?,
            refused_reads: narrow(next())?,
            refused_writes: narrow(next())?,
            sends_unanswered: narrow(next())?,
            sends_flushed: narrow(next())?,
            received: narrow(next())?,
            next: narrow(next())?,
            receives_flushed: narrow(next())?,
            bytes: next()?,
        };
        words.next().is_none().then_some(record)
    }
}

/// The first word of the last line: what this side has refused.
const REFUSALS: &str = "refused ";

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

    pub(crate) fn close(self, refusals: Refusals) -> Result<(), Failure> {
        let mut file = self.0.into_inner().map_err(|_| "the books are torn")?;
        writeln!(file, "{REFUSALS}{} {}", refusals.reads, refusals.writes)?;
        Ok(file.flush()?)
    }
}

/// The books of one side.
struct Ledger {
    records: HashMap<(u16, u32), Record>,
    refusals: Refusals,
}

fn parse_refusals(line: &str) -> Option<Refusals> {
    let (reads, writes) = line.strip_prefix(REFUSALS)?.split_once(' ')?;
    Some(Refusals {
        reads: reads.parse().ok()?,
        writes: writes.parse().ok()?,
    })
}

fn read(path: &Path) -> Result<Ledger, Failure> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut records = HashMap::new();
    let mut refusals = None;
    for line in BufReader::new(file).lines() {
        let line = line?;
        if let Some(last) = parse_refusals(&line) {
            refusals = Some(last);
            continue;
        }
        let record = Record::parse(&line)
            .ok_or_else(|| format!("{}: not a record: {line}", path.display()))?;
        if let Some(twice) = records.insert((record.slot, record.connection), record) {
            return Err(format!(
                "{}: two records of one connection: {record:?}, {twice:?}",
                path.display()
            )
            .into());
        }
    }
    let refusals = refusals.ok_or_else(|| format!("{}: not closed", path.display()))?;
    Ok(Ledger { records, refusals })
}

/// Whether frames can be lost between the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Lossless,
    Lossy,
}

impl Wire {
    /// Is a message of this level complete only when the other side has it? Where frames may be lost, reliable
    /// connections recover.
    fn acknowledges(self, level: ReliabilityLevel) -> bool {
        match level {
            ReliabilityLevel::Unreliable => false,
            ReliabilityLevel::ReliableDelivery => self == Self::Lossy,
            ReliabilityLevel::ReliableReception => true,
        }
    }
}

/// What the two books say together.
#[derive(Default)]
struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    fn add(&mut self, name: &'static str, number: impl Into<u64>) {
        *self.0.entry(name).or_default() += number.into();
    }
}

/// What happens in a run that is long enough. One in which nothing happened proves nothing.
pub(crate) const EVERYTHING: &[&str] = &[
    "connections",
    "messages",
    "unreliable_messages",
    "answered_messages",
    "silent_writes",
    "reads",
    "sends_flushed",
    "ended_here",
];
/// What happens in any run: the rest is luck where others have most of the time.
pub(crate) const LEAST: &[&str] = &["connections", "arrived", "ended_here"];

/// Checks the books of both sides against each other, and prints what they add up to; what is `needed` must have happened.
pub(crate) fn judge(left: &Path, right: &Path, wire: Wire, needed: &[&str]) -> Result<(), Failure> {
    let (left, right) = (read(left)?, read(right)?);
    let mut totals = Totals::default();
    for (side, ours, theirs) in [(Side::Left, &left, &right), (Side::Right, &right, &left)] {
        for (name, record) in &ours.records {
            judge_sender(record, theirs.records.get(name), wire, &mut totals)
                .map_err(|error| format!("connection {name:?}, from {}: {error}", side.name()))?;
        }
        judge_refusals(ours.records.values(), theirs.refusals, &mut totals)
            .map_err(|error| format!("strays of {}: {error}", side.name()))?;
    }
    let is_known = |name: &&(u16, u32)| right.records.contains_key(*name);
    let both = left.records.keys().filter(is_known).count();
    totals.add("connections", both as u64);
    for (name, number) in &totals.0 {
        println!("count {name} {number}");
    }
    for name in needed {
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
        let is_answered = wire.acknowledges(shape.level) && sender.sent > 0;
        if sender.received > 0 || sender.reads > 0 || is_answered {
            return Err(
                format!("it was answered by a side without a connection: {sender:?}").into(),
            );
        }
        return Ok(());
    };
    let wrong = |what: &str| -> Result<(), Failure> {
        Err(format!("{what}: {sender:?}, {receiver:?}").into())
    };
    if sender.sent > sender.posted {
        return wrong("more messages were sent than posted");
    }
    if receiver.next > sender.posted {
        return wrong("a message arrived that was not posted");
    }
    if shape.is_reliable() && receiver.received != receiver.next {
        return wrong("what arrived has gaps");
    }
    // Elsewhere a message can be flushed that has arrived: it waited to be acknowledged, or behind a read.
    let waits = shape.is_answered() || wire.acknowledges(shape.level);
    if !waits && receiver.received > sender.sent {
        return wrong("more messages arrived than were sent");
    }
    // Whoever ends a connection has its last frames in front of the news of that.
    let is_all_there = sender.ended_by == EndedBy::Us && receiver.ended_by == EndedBy::Peer;
    if wire == Wire::Lossless && is_all_there && receiver.received < sender.sent {
        return wrong("messages that were sent before the end did not arrive");
    }
    if wire.acknowledges(shape.level) && receiver.received < sender.sent {
        return wrong("messages that the other side said to have did not arrive");
    }
    let unarrived = sender.sent.saturating_sub(receiver.received);
    totals.add("arrived", receiver.received);
    match shape.level {
        ReliabilityLevel::Unreliable => {
            totals.add("unreliable_messages", receiver.received);
            totals.add("unreliable_messages_unarrived", unarrived);
        }
        ReliabilityLevel::ReliableDelivery => {
            totals.add("messages", receiver.received);
            totals.add("messages_unarrived", unarrived);
        }
        ReliabilityLevel::ReliableReception => {
            totals.add("answered_messages", receiver.received);
        }
    }
    totals.add(
        "messages_arrived_and_flushed",
        receiver.received.saturating_sub(sender.sent),
    );
    totals.add("reads", sender.reads);
    totals.add("read_bytes", sender.read_bytes);
    totals.add("bytes", receiver.bytes);
    totals.add("silent_writes", sender.silent_writes);
    totals.add("sends_unanswered", sender.sends_unanswered);
    totals.add("sends_flushed", sender.sends_flushed);
    totals.add("receives_flushed", receiver.receives_flushed);
    totals.add("ended_here", u64::from(sender.ended_by == EndedBy::Us));
    Ok(())
}

/// What one side did for the other to refuse, against what the other reports. A stray that the end of its connection
/// has overtaken is flushed, or was never seen; one that completed as refused was reported, each once.
fn judge_refusals<'a>(
    senders: impl Iterator<Item = &'a Record>,
    reported: Refusals,
    totals: &mut Totals,
) -> Result<(), Failure> {
    let (mut posted, mut refused) = (Refusals::default(), Refusals::default());
    for sender in senders {
        posted.reads += u64::from(sender.stray_reads);
        posted.writes += u64::from(sender.stray_writes);
        refused.reads += u64::from(sender.refused_reads);
        refused.writes += u64::from(sender.refused_writes);
    }
    let is_right = (refused.reads..=posted.reads).contains(&reported.reads)
        && (refused.writes..=posted.writes).contains(&reported.writes);
    if !is_right {
        return Err(format!(
            "{posted:?} posted, {refused:?} completed as refused, {reported:?} reported"
        )
        .into());
    }
    totals.add("reads_refused", refused.reads);
    totals.add("writes_refused", refused.writes);
    totals.add("refusals_reported", reported.reads + reported.writes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Record = Record {
        // No reads.
        slot: 2,
        connection: 1,
        ended_by: EndedBy::Us,
        posted: 9,
        sent: 8,
        silent_writes: 2,
        reads: 0,
        read_bytes: 0,
        stray_reads: 1,
        stray_writes: 0,
        refused_reads: 1,
        refused_writes: 0,
        sends_unanswered: 0,
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

    #[test]
    fn a_response_says_that_the_message_is_there() {
        let sender = Record { slot: 3, ..GOOD };
        let receiver = Record { slot: 3, ..PEER };
        assert!(verdict(&sender, Some(&receiver)));
        let more = Record {
            received: 9,
            next: 9,
            ..receiver
        };
        assert!(verdict(&sender, Some(&more)), "its response was overtaken");
        let lost = Record {
            received: 7,
            next: 7,
            ended_by: EndedBy::Us,
            ..receiver
        };
        assert!(!verdict(&sender, Some(&lost)), "whoever ended it");
        let never = Record {
            received: 0,
            next: 0,
            ..sender
        };
        assert!(!verdict(&never, None), "a response from nowhere");
        let nothing = Record { sent: 0, ..never };
        assert!(verdict(&nothing, None));
        assert!(!verdict(
            &Record {
                reads: 1,
                ..nothing
            },
            None
        ));
    }

    #[test]
    fn every_refusal_is_reported_once() {
        let verdict = |reads, writes| {
            let reported = Refusals { reads, writes };
            judge_refusals([GOOD, GOOD].iter(), reported, &mut Totals::default()).is_ok()
        };
        assert!(verdict(2, 0));
        assert!(!verdict(1, 0), "one is not reported");
        assert!(!verdict(3, 0), "one is reported twice");
        assert!(!verdict(2, 1), "a write that nobody made");
    }
}
