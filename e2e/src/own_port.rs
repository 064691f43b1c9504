//! A port of ours that tells what it sees: `fcvi-pmd neighbours --watch`, in JSON.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::installation::built;
use crate::process::{Line, Running, TIMEOUT};
use crate::wire::Namespace;

/// Longer than any test looks on, in seconds.
const LOOKS_ON_S: &str = "600";

/// A port that runs; killed when it is dropped.
pub struct OwnPort {
    running: Running,
}

/// Our port as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnView {
    /// Its N_Port_ID.
    pub port_id: u32,
    /// Its port name.
    pub port_name: u64,
    /// Its node name.
    pub node_name: u64,
}

/// A neighbour as our port says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourView {
    /// Its N_Port_ID.
    pub port_id: u32,
    /// Its node name.
    pub node_name: u64,
    /// The address of its interface.
    pub mac: String,
    /// Whether it speaks FC-VI.
    pub speaks_fc_vi: bool,
    /// When that was read here.
    pub at: Instant,
}

impl OwnPort {
    /// Starts the program in a namespace.
    ///
    /// # Panics
    /// If it is not built.
    pub fn start(namespace: &Namespace, name: &str, config: &Path) -> Self {
        let program = built().join("fcvi-pmd");
        assert!(
            program.exists(),
            "{} is missing: cargo build -p fcvi-pmd",
            program.display()
        );
        let mut command = namespace.program(program);
        command
            .args(["neighbours", "--watch", "--json", "--for", LOOKS_ON_S])
            .arg("--config")
            .arg(config);
        Self {
            running: Running::start(name, &mut command),
        }
    }

    /// Waits until it has an N_Port_ID.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_until_up(&mut self) -> OwnView {
        let is_up = |line: &Value| line["own"]["state"] == "up";
        let (_, line) = self.wait_until("our port is up", TIMEOUT, is_up);
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
    /// If that takes too long.
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

    /// Waits until so many neighbours are logged in and their hosts are known.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_hosts(&mut self, count: usize) {
        let mut known: Vec<u64> = Vec::new();
        while known.len() < count {
            let what = format!("{count} hosts, {} are known", known.len());
            let is_news = |line: &Value| {
                let neighbour = &line["neighbour"];
                neighbour["host"].is_string() && !known.contains(&number(neighbour, "port_name"))
            };
            let (_, line) = self.wait_until(&what, TIMEOUT, is_news);
            known.push(number(&line["neighbour"], "port_name"));
        }
    }

    /// Waits until a neighbour is gone; gives the time.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_until_gone(&mut self, port_name: u64, limit: Duration) -> Instant {
        let what = format!("{port_name:#018x} is gone");
        let is_it = |line: &Value| is_of(line, port_name) && line["event"] == "gone";
        self.wait_until(&what, limit, is_it).0
    }

    /// Forgets what was said so far: only newer lines are waited for.
    pub fn skip(&mut self) {
        self.running.skip();
    }

    /// Waits for as long, in which what it sees must stay as it is.
    ///
    /// # Panics
    /// If it changes.
    pub fn stay_silent(&mut self, time: Duration) {
        self.running.stay_silent(time);
    }

    /// Ends it as Ctrl-C does, and it must end well; gives the time of the signal.
    ///
    /// # Panics
    /// If it does not.
    pub fn leave(self) -> Instant {
        let at = Instant::now();
        self.running.signal("INT");
        self.running.succeed(TIMEOUT);
        at
    }

    /// Kills it in the middle of whatever it does; gives the time of the deed.
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
        (at, json(&text).expect("it was read before"))
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

/// A number in hexadecimal with something between its bytes.
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
