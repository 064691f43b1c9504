//! A Viaduct port that reports its neighbours in JSON: `fcvi-pmd neighbours --watch`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::datapath::fcvi_pmd_path;
use crate::process::{Line, Running, TIMEOUT};
use crate::wire::Namespace;

/// Runtime of the command in seconds; longer than any test.
const RUNTIME_S: &str = "600";

/// A running port; killed on drop.
pub struct OwnPort {
    running: Running,
}

/// The local port, as reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnView {
    /// Its N_Port_ID.
    pub port_id: u32,
    /// Its port name.
    pub port_name: u64,
    /// Its node name.
    pub node_name: u64,
}

/// A neighbour, as reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourView {
    /// Its N_Port_ID.
    pub port_id: u32,
    /// Its node name.
    pub node_name: u64,
    /// The MAC address of its interface.
    pub mac: String,
    /// Whether it supports FC-VI.
    pub speaks_fc_vi: bool,
    /// When the line was read.
    pub at: Instant,
}

impl OwnPort {
    /// Starts the program in a namespace.
    ///
    /// # Panics
    /// If it is not built.
    pub fn start(namespace: &Namespace, name: &str, config: &Path) -> Self {
        let program = fcvi_pmd_path();
        assert!(
            program.exists(),
            "{} is missing: cargo build -p fcvi-pmd",
            program.display()
        );
        let mut command = namespace.program(program);
        command
            .args(["neighbours", "--watch", "--json", "--for", RUNTIME_S])
            .arg("--config")
            .arg(config);
        Self {
            running: Running::start(name, &mut command),
        }
    }

    /// Waits until the port has an N_Port_ID.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_until_up(&mut self) -> OwnView {
        let is_up = |line: &Value| line["own"]["state"] == "up";
        let (_, line) = self.wait_until("the local port is up", TIMEOUT, is_up);
        let own = &line["own"];
        OwnView {
            port_id: port_id(own),
            port_name: number(own, "port_name"),
            node_name: number(own, "node_name"),
        }
    }

    /// Waits until the login with a neighbour is in a state.
    ///
    /// # Panics
    /// After the limit.
    pub fn wait_for_login(
        &mut self,
        port_name: u64,
        state: &str,
        limit: Duration,
    ) -> NeighbourView {
        let what = format!("{port_name:#018x} {state}");
        let (at, line) = self.wait_until(&what, limit, |line| {
            is_of(line, port_name) && line["event"] != "gone" && line["neighbour"]["login"] == state
        });
        let neighbour = &line["neighbour"];
        NeighbourView {
            port_id: port_id(neighbour),
            node_name: number(neighbour, "node_name"),
            mac: text(neighbour, "mac").to_owned(),
            speaks_fc_vi: neighbour["speaks_fc_vi"] == true,
            at,
        }
    }

    /// Waits until `count` neighbours are logged in and their hosts are known.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_for_hosts(&mut self, count: usize) {
        let mut known: Vec<u64> = Vec::new();
        while known.len() < count {
            let what = format!("{count} hosts, {} are known", known.len());
            let is_unknown_host = |line: &Value| {
                let neighbour = &line["neighbour"];
                neighbour["host"].is_string() && !known.contains(&number(neighbour, "port_name"))
            };
            let (_, line) = self.wait_until(&what, TIMEOUT, is_unknown_host);
            known.push(number(&line["neighbour"], "port_name"));
        }
    }

    /// Waits until a neighbour is gone; returns the time.
    ///
    /// # Panics
    /// After the limit.
    pub fn wait_until_gone(&mut self, port_name: u64, limit: Duration) -> Instant {
        let what = format!("{port_name:#018x} is gone");
        let is_gone = |line: &Value| is_of(line, port_name) && line["event"] == "gone";
        self.wait_until(&what, limit, is_gone).0
    }

    /// Discards earlier output; later waits match new lines only.
    pub fn discard_output(&mut self) {
        self.running.discard_output();
    }

    /// Waits for `time`, during which no change may be reported.
    ///
    /// # Panics
    /// If one is.
    pub fn expect_silence(&mut self, time: Duration) {
        self.running.expect_silence(time);
    }

    /// Stops the port with SIGINT; returns the time of the signal.
    ///
    /// # Panics
    /// If the program fails.
    pub fn stop(self) -> Instant {
        let at = Instant::now();
        self.running.signal("INT");
        self.running.succeed(TIMEOUT);
        at
    }

    /// Kills the port with SIGKILL; returns the time of the kill.
    pub fn kill(self) -> Instant {
        self.running.kill()
    }

    fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        fits: impl Fn(&Value) -> bool,
    ) -> (Instant, Value) {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let Line { at, text } = self.running.wait_until(what, limit, |text| {
            json(text).is_some_and(|line| fits(&line))
        });
        (at, json(&text).expect("the line was parsed before"))
    }
}

fn is_of(line: &Value, port_name: u64) -> bool {
    let neighbour = &line["neighbour"];
    neighbour.is_object() && number(neighbour, "port_name") == port_name
}

fn text<'a>(port: &'a Value, key: &str) -> &'a str {
    port[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {port}"))
}

/// Parses a hexadecimal number with separators between its bytes.
fn number(port: &Value, key: &str) -> u64 {
    let digits: String = text(port, key)
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    u64::from_str_radix(&digits, 16).unwrap_or_else(|e| panic!("{key} of {port}: {e}"))
}

fn port_id(port: &Value) -> u32 {
    number(port, "n_port_id").try_into().expect("24 bits")
}
