//! Bulk transfer in one direction over consecutive reliable connections, with `vi-peer` as sink and source.

use std::process::Command;

use crate::process::{Running, TIMEOUT};
use crate::report::Report;

/// The amount of data from the source to the sink.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Number of connections.
    pub rounds: u64,
    /// Messages on each connection.
    pub messages: u64,
}

impl Bulk {
    /// Sends to the host of the sink; `sink` and `source` are `vi-peer` with their configurations. Returns the reports
    /// of sink and source.
    ///
    /// # Panics
    /// A message is lost, duplicated, reordered or damaged (the sink checks each byte), or a connection breaks. The
    /// text begins with `what`.
    pub fn send(
        self,
        what: &str,
        sink: &mut Command,
        source: &mut Command,
        host: &str,
    ) -> [Report; 2] {
        let (rounds, messages) = (self.rounds.to_string(), self.messages.to_string());
        sink.args(["rd-sink", "bulk", "--rounds", &rounds]);
        let mut sink = Running::start("sink", sink);
        sink.wait_for("listening", TIMEOUT);
        source.args(["rd-source", host, "bulk"]);
        source.args(["--rounds", &rounds, "--messages", &messages]);
        let source = Running::start("source", source);
        let (source, sink) = (source.finish(2 * TIMEOUT), sink.finish(2 * TIMEOUT));
        let both = format!("{what}\n{}\n{}", source.text, sink.text);
        assert!(source.status.success() && sink.status.success(), "{both}");
        let whole = format!(" messages {messages} losses 1 ");
        let complete = sink.text.lines().filter(|line| line.contains(&whole));
        assert_eq!(complete.count() as u64, self.rounds, "{both}");
        let reports = [sink, source].map(|ended| Report::read(&ended.text));
        assert_eq!(reports[1].get("unbroken"), self.rounds, "{both}");
        reports
    }
}
