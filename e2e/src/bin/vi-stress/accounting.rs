//! Records of all connections on both sides, and their comparison.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use vipl::ReliabilityLevel;

use crate::events::Refusals;
use crate::plan::{Side, SlotConfig};
use crate::slot::lock;
use e2e::failure::Failure;
use e2e::sync::{AtomicBool, Ordering};

/// The side that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EndedBy {
    Local,
    Peer,
}

/// The record of one connection on one side. Messages are sends and RDMA writes with immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) slot: u16,
    pub(crate) connection: u32,
    pub(crate) ended_by: EndedBy,
    /// Posted messages.
    pub(crate) posted: u32,
    /// Messages completed without error.
    pub(crate) sent: u32,
    /// RDMA writes without immediate data, completed without error.
    pub(crate) plain_writes: u32,
    /// RDMA reads, completed without error.
    pub(crate) reads: u32,
    pub(crate) read_bytes: u64,
    /// Posted operations that the remote side must refuse.
    pub(crate) unexpected_reads: u32,
    pub(crate) unexpected_writes: u32,
    /// Operations completed as refused.
    pub(crate) refused_reads: u32,
    pub(crate) refused_writes: u32,
    /// Sends completed with a transport error: their response is lost.
    pub(crate) sends_without_response: u32,
    pub(crate) sends_flushed: u32,
    pub(crate) received: u32,
    /// The number after that of the last message that arrived.
    pub(crate) next: u32,
    pub(crate) receives_flushed: u32,
    pub(crate) bytes: u64,
}

/// Prefix of the last line, which counts the operations that this side has refused.
const REFUSALS: &str = "refused ";

/// Writes the records of one side to a file.
pub(crate) struct RecordWriter {
    file: Mutex<BufWriter<File>>,
    /// A connection on which messages arrived has ended.
    has_arrived: AtomicBool,
}

impl RecordWriter {
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            file: Mutex::new(BufWriter::new(file)),
            has_arrived: AtomicBool::new(false),
        })
    }

    pub(crate) fn append(&self, record: &Record) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if record.received > 0 {
            self.has_arrived.store(true, Ordering::SeqCst);
        }
        Ok(lock(&self.file).write_all(&line)?)
    }

    /// Returns true if there is a record of a connection on which messages arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::SeqCst)
    }

    /// Appends the refusals, which complete the file.
    pub(crate) fn finish(self, refusals: Refusals) -> Result<(), Failure> {
        let mut file = self
            .file
            .into_inner()
            .map_err(|_| "a thread has panicked while writing records")?;
        writeln!(file, "{REFUSALS}{} {}", refusals.reads, refusals.writes)?;
        Ok(file.flush()?)
    }
}

/// The records of one side.
struct SideRecords {
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

fn read(path: &Path) -> Result<SideRecords, Failure> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut records = HashMap::new();
    let mut refusals = None;
    for line in BufReader::new(file).lines() {
        let line = line?;
        if let Some(last) = parse_refusals(&line) {
            refusals = Some(last);
            continue;
        }
        let record: Record = serde_json::from_str(&line)
            .map_err(|error| format!("{}: {error}: {line}", path.display()))?;
        if let Some(duplicate) = records.insert((record.slot, record.connection), record) {
            return Err(format!(
                "{}: two records of one connection: {record:?}, {duplicate:?}",
                path.display()
            )
            .into());
        }
    }
    let refusals = refusals.ok_or_else(|| format!("{}: incomplete file", path.display()))?;
    Ok(SideRecords { records, refusals })
}

/// Whether the network between the sides can lose frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Lossless,
    Lossy,
}

impl Wire {
    /// Whether messages of this level complete only after their delivery. On lossy networks, recovery acknowledges
    /// messages of all reliable levels.
    fn acknowledges(self, level: ReliabilityLevel) -> bool {
        match level {
            ReliabilityLevel::UnreliableDelivery => false,
            ReliabilityLevel::ReliableDelivery => self == Self::Lossy,
            ReliabilityLevel::ReliableReception => true,
        }
    }
}

/// Sums of all records.
#[derive(Default)]
struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    fn add(&mut self, name: &'static str, number: impl Into<u64>) {
        *self.0.entry(name).or_default() += number.into();
    }
}

/// Totals that must not be 0 in a run, since they would not have been tested.
pub(crate) const ALL_REQUIRED: &[&str] = &[
    "connections",
    "messages",
    "unreliable_messages",
    "acknowledged_messages",
    "plain_writes",
    "reads",
    "sends_flushed",
    "local_disconnects",
];
/// The same for runs beside other programs, in which the rest depends on the available CPU time.
pub(crate) const MIN_REQUIRED: &[&str] = &["connections", "arrived", "local_disconnects"];

/// Compares the records of both sides and prints their totals. Those in `required` must not be 0.
pub(crate) fn compare(
    left: &Path,
    right: &Path,
    wire: Wire,
    required: &[&str],
) -> Result<(), Failure> {
    let (left, right) = (read(left)?, read(right)?);
    let mut totals = Totals::default();
    for (side, local, remote) in [(Side::Left, &left, &right), (Side::Right, &right, &left)] {
        for (name, record) in &local.records {
            compare_messages(record, remote.records.get(name), wire, &mut totals)
                .map_err(|error| format!("connection {name:?}, from {}: {error}", side.name()))?;
        }
        compare_refusals(local.records.values(), remote.refusals, &mut totals)
            .map_err(|error| format!("unexpected operations of {}: {error}", side.name()))?;
    }
    let is_known = |name: &&(u16, u32)| right.records.contains_key(*name);
    let both = left.records.keys().filter(is_known).count();
    totals.add("connections", both as u64);
    for (name, number) in &totals.0 {
        println!("count {name} {number}");
    }
    for name in required {
        if totals.0.get(name).is_none_or(|number| *number == 0) {
            return Err(format!("{name} is 0").into());
        }
    }
    Ok(())
}

/// Compares the messages sent by one side with those received by the other.
fn compare_messages(
    sender: &Record,
    receiver: Option<&Record>,
    wire: Wire,
    totals: &mut Totals,
) -> Result<(), Failure> {
    let config = SlotConfig::new(sender.slot);
    let Some(receiver) = receiver else {
        // The remote side timed out before the connection was established.
        totals.add("one_sided_connections", 1u64);
        let is_acknowledged = wire.acknowledges(config.level) && sender.sent > 0;
        if sender.received > 0 || sender.reads > 0 || is_acknowledged {
            return Err(format!("responses from a side without connection: {sender:?}").into());
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
        return wrong("a message was received that was not posted");
    }
    if config.is_reliable() && receiver.received != receiver.next {
        return wrong("messages are missing in a reliable stream");
    }
    // Otherwise a delivered message may be flushed while it waits for an acknowledgement, or behind a read.
    let waits = config.needs_responses() || wire.acknowledges(config.level);
    if !waits && receiver.received > sender.sent {
        return wrong("more messages were received than sent");
    }
    // Frames before the disconnect arrive before it.
    let must_arrive = sender.ended_by == EndedBy::Local && receiver.ended_by == EndedBy::Peer;
    if wire == Wire::Lossless && must_arrive && receiver.received < sender.sent {
        return wrong("messages sent before the disconnect were not received");
    }
    if wire.acknowledges(config.level) && receiver.received < sender.sent {
        return wrong("acknowledged messages were not received");
    }
    let undelivered = sender.sent.saturating_sub(receiver.received);
    totals.add("arrived", receiver.received);
    match config.level {
        ReliabilityLevel::UnreliableDelivery => {
            totals.add("unreliable_messages", receiver.received);
            totals.add("unreliable_messages_undelivered", undelivered);
        }
        ReliabilityLevel::ReliableDelivery => {
            totals.add("messages", receiver.received);
            totals.add("messages_undelivered", undelivered);
        }
        ReliabilityLevel::ReliableReception => {
            totals.add("acknowledged_messages", receiver.received);
        }
    }
    totals.add(
        "messages_delivered_and_flushed",
        receiver.received.saturating_sub(sender.sent),
    );
    totals.add("reads", sender.reads);
    totals.add("read_bytes", sender.read_bytes);
    totals.add("bytes", receiver.bytes);
    totals.add("plain_writes", sender.plain_writes);
    totals.add("sends_without_response", sender.sends_without_response);
    totals.add("sends_flushed", sender.sends_flushed);
    totals.add("receives_flushed", receiver.receives_flushed);
    totals.add(
        "local_disconnects",
        u64::from(sender.ended_by == EndedBy::Local),
    );
    Ok(())
}

/// Compares the unexpected operations of one side with the refusals that the other side reported. Each operation that
/// completed as refused was reported once; one that was flushed by the end of its connection may be unreported.
fn compare_refusals<'a>(
    senders: impl Iterator<Item = &'a Record>,
    reported: Refusals,
    totals: &mut Totals,
) -> Result<(), Failure> {
    let (mut posted, mut refused) = (Refusals::default(), Refusals::default());
    for sender in senders {
        posted.reads += u64::from(sender.unexpected_reads);
        posted.writes += u64::from(sender.unexpected_writes);
        refused.reads += u64::from(sender.refused_reads);
        refused.writes += u64::from(sender.refused_writes);
    }
    let is_consistent = (refused.reads..=posted.reads).contains(&reported.reads)
        && (refused.writes..=posted.writes).contains(&reported.writes);
    if !is_consistent {
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
        // A slot without reads.
        slot: 2,
        connection: 1,
        ended_by: EndedBy::Local,
        posted: 9,
        sent: 8,
        plain_writes: 2,
        reads: 0,
        read_bytes: 0,
        unexpected_reads: 1,
        unexpected_writes: 0,
        refused_reads: 1,
        refused_writes: 0,
        sends_without_response: 0,
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

    /// Whether messages from `sender` to `receiver` are consistent. `None`: the receiver timed out.
    fn is_ok(sender: &Record, receiver: Option<Record>) -> bool {
        let (receiver, totals) = (receiver.as_ref(), &mut Totals::default());
        compare_messages(sender, receiver, Wire::Lossless, totals).is_ok()
    }

    /// `record` with this number of received messages, and without a gap.
    fn received(received: u32, record: Record) -> Record {
        Record {
            received,
            next: received,
            ..record
        }
    }

    fn ended_locally(record: Record) -> Record {
        Record {
            ended_by: EndedBy::Local,
            ..record
        }
    }

    #[test]
    fn lost_duplicated_and_invented_messages_are_detected() {
        let invented = Record { sent: 10, ..GOOD };
        let gap = Record {
            received: 7,
            ..PEER
        };
        let lost = received(7, PEER);
        for (what, sender, receiver, expected) in [
            ("all received", GOOD, Some(PEER), true),
            ("one is lost", GOOD, Some(lost), false),
            ("by a disconnect", GOOD, Some(ended_locally(lost)), true),
            ("a gap", GOOD, Some(gap), false),
            ("not sent", GOOD, Some(received(9, PEER)), false),
            ("not posted", invented, Some(PEER), false),
            ("timed out", GOOD, None, true),
            ("received without connection", PEER, None, false),
        ] {
            assert_eq!(is_ok(&sender, receiver), expected, "{what}");
        }
    }

    #[test]
    fn an_unreliable_connection_may_lose_messages() {
        let on_slot = |record| Record { slot: 1, ..record };
        let sender = Record {
            ended_by: EndedBy::Peer,
            ..on_slot(GOOD)
        };
        for (next, expected) in [(7, true), (10, false)] {
            let receiver = Record {
                next,
                ..received(5, on_slot(PEER))
            };
            assert_eq!(is_ok(&sender, Some(receiver)), expected, "{next}");
        }
    }

    #[test]
    fn messages_with_response_must_be_received() {
        let on_slot = |record| Record { slot: 3, ..record };
        let (sender, receiver) = (on_slot(GOOD), on_slot(PEER));
        let lost = ended_locally(received(7, receiver));
        let nothing = Record { sent: 0, ..sender };
        let read = Record {
            reads: 1,
            ..nothing
        };
        for (what, sender, receiver, expected) in [
            ("all received", sender, Some(receiver), true),
            ("no response", sender, Some(received(9, receiver)), true),
            ("lost by a disconnect", sender, Some(lost), false),
            ("a response without connection", sender, None, false),
            ("nothing", nothing, None, true),
            ("a read without connection", read, None, false),
        ] {
            assert_eq!(is_ok(&sender, receiver), expected, "{what}");
        }
    }

    #[test]
    fn each_refusal_is_reported_once() {
        let is_ok = |reads, writes| {
            let reported = Refusals { reads, writes };
            compare_refusals([GOOD, GOOD].iter(), reported, &mut Totals::default()).is_ok()
        };
        assert!(is_ok(2, 0));
        assert!(!is_ok(1, 0), "one is not reported");
        assert!(!is_ok(3, 0), "one is reported twice");
        assert!(!is_ok(2, 1), "a write that was not posted");
    }
}
