//! Own port and neighbour ports of a NIC as text and as JSON.

use std::io::{self, Write};

use pmd::nic::{DiscoveredPort, LoginState, NeighbourPort, NetworkView, OwnPort, OwnState};
use serde::Serialize;

/// An event of a neighbour port.
#[derive(Clone, Copy, Debug)]
pub enum NeighbourEvent {
    /// It was present at the start.
    Present(NeighbourPort),
    /// It was discovered.
    Appeared(NeighbourPort),
    /// Its attributes have changed.
    Changed(NeighbourPort),
    /// It has disappeared.
    Gone(NeighbourPort),
}

impl NeighbourEvent {
    fn word(self) -> &'static str {
        match self {
            Self::Present(_) => "neighbour",
            Self::Appeared(_) => "appeared",
            Self::Changed(_) => "changed",
            Self::Gone(_) => "gone",
        }
    }

    fn port(&self) -> &NeighbourPort {
        match self {
            Self::Present(port) | Self::Appeared(port) | Self::Changed(port) | Self::Gone(port) => {
                port
            }
        }
    }
}

/// Returns the changes between two network views, disappeared ports first. A port with another N_Port_ID is another
/// neighbour.
#[must_use]
pub fn changes(before: &NetworkView, now: &NetworkView) -> Vec<NeighbourEvent> {
    let key = |port: &NeighbourPort| (port.n_port_id, port.found.map(|found| found.port_name));
    let find = |all: &NetworkView, port: &NeighbourPort| {
        let mut ports = all.ports.iter();
        ports.find(|other| key(other) == key(port)).copied()
    };
    let gone = before.ports.iter().copied();
    let gone = gone.filter(|port| find(now, port).is_none());
    let there = now.ports.iter().filter_map(|port| {
        Some(match find(before, port) {
            None => NeighbourEvent::Appeared(*port),
            Some(old) if old.is_same(port) => return None,
            Some(_) => NeighbourEvent::Changed(*port),
        })
    });
    gone.map(NeighbourEvent::Gone).chain(there).collect()
}

/// Formats a report.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The name of the NIC.
    pub nic: &'a str,
    /// JSON instead of text.
    pub json: bool,
}

impl Report<'_> {
    /// Writes the own port and its neighbours: a line each, or one JSON object.
    ///
    /// # Errors
    /// Those of writing.
    pub fn list(&self, out: &mut impl Write, all: &NetworkView) -> io::Result<()> {
        if self.json {
            let list = ListJson {
                own: OwnJson::new(self.nic, &all.own),
                neighbours: all.ports.iter().map(PortJson::new).collect(),
            };
            return line(out, &list);
        }
        self.own(out, &all.own)?;
        if all.ports.is_empty() {
            writeln!(out, "no neighbours")?;
        }
        self.events(out, all.ports.iter().copied().map(NeighbourEvent::Present))
    }

    /// Writes the own port, and whether neighbours are discovered: a line, or a JSON object.
    ///
    /// # Errors
    /// Those of writing.
    pub fn own(&self, out: &mut impl Write, own: &OwnPort) -> io::Result<()> {
        if self.json {
            let own = OwnJson::new(self.nic, own);
            return line(out, &EventJson::Own { own });
        }
        let id = own.n_port_id.map_or("none".to_owned(), |id| id.to_string());
        writeln!(
            out,
            "{}: N_Port_ID {id}, Port_Name {}, Node_Name {}, host {}, {}; {}",
            self.nic,
            name(own.port_name),
            name(own.node_name),
            own.host,
            own_state(own.state),
            if own.discovers {
                "neighbours are discovered"
            } else {
                "no discovery: neighbours are those of the configuration or of the shared segment"
            },
        )?;
        out.flush()
    }

    /// Writes events: a line each, or a JSON object each.
    ///
    /// # Errors
    /// Those of writing.
    pub fn events(
        &self,
        out: &mut impl Write,
        events: impl IntoIterator<Item = NeighbourEvent>,
    ) -> io::Result<()> {
        for event in events {
            if self.json {
                let neighbour = PortJson::new(event.port());
                line(
                    out,
                    &EventJson::Neighbour {
                        event: event.word(),
                        neighbour,
                    },
                )?;
            } else {
                writeln!(out, "{}", text(event))?;
            }
        }
        out.flush()
    }
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn text(event: NeighbourEvent) -> String {
    let port = event.port();
    let host = port
        .host
        .map_or("unknown".to_owned(), |host| host.to_string());
    let begin = format!("{}: N_Port_ID {}", event.word(), port.n_port_id);
    let Some(found) = &port.found else {
        return format!("{begin}, host {host}");
    };
    format!(
        "{begin}, Port_Name {}, Node_Name {}, {}, host {host}, MAC {}, {}, FC-VI {}, last seen {:.1} s ago",
        name(found.port_name),
        name(found.node_name),
        login_state(found.login),
        found.mac,
        size(found),
        if found.speaks_fc_vi { "yes" } else { "no" },
        found.heard_ago.as_secs_f64(),
    )
}

fn size(found: &DiscoveredPort) -> String {
    match (found.data_field_bytes, found.path_fcoe_bytes) {
        (Some(bytes), _) => format!("data fields of {bytes} bytes"),
        (None, Some(bytes)) => format!("FCoE frames of {bytes} bytes"),
        (None, None) => format!(
            "FCoE frames of {} bytes, not verified yet",
            found.max_fcoe_bytes
        ),
    }
}

/// A worldwide name, as `20:00:52:54:00:00:00:01`.
fn name(name: u64) -> String {
    let digits = name.to_be_bytes().map(|byte| format!("{byte:02x}"));
    digits.join(":")
}

fn own_state(state: OwnState) -> &'static str {
    match state {
        OwnState::Probing => "probing",
        OwnState::Up => "up",
        OwnState::Failed => "failed",
    }
}

fn login_state(state: LoginState) -> &'static str {
    match state {
        LoginState::Found => "found",
        LoginState::LoggingIn => "logging in",
        LoginState::LoggedIn => "logged in",
        LoginState::LoggedOut => "logged out",
    }
}

/// JSON of [`Report::list`].
#[derive(Serialize)]
struct ListJson<'a> {
    own: OwnJson<'a>,
    neighbours: Vec<PortJson>,
}

/// JSON of [`Report::own`] and [`Report::events`].
#[derive(Serialize)]
#[serde(untagged)]
enum EventJson<'a> {
    Own {
        own: OwnJson<'a>,
    },
    Neighbour {
        event: &'static str,
        neighbour: PortJson,
    },
}

#[derive(Serialize)]
struct OwnJson<'a> {
    nic: &'a str,
    n_port_id: Option<String>,
    port_name: String,
    node_name: String,
    host: String,
    state: &'static str,
    discovers: bool,
}

impl<'a> OwnJson<'a> {
    fn new(nic: &'a str, own: &OwnPort) -> Self {
        Self {
            nic,
            n_port_id: own.n_port_id.map(|id| id.to_string()),
            port_name: name(own.port_name),
            node_name: name(own.node_name),
            host: own.host.to_string(),
            state: own_state(own.state),
            discovers: own.discovers,
        }
    }
}

#[derive(Serialize)]
struct PortJson {
    n_port_id: String,
    host: Option<String>,
    #[serde(flatten)]
    found: Option<FoundJson>,
}

#[derive(Serialize)]
struct FoundJson {
    port_name: String,
    node_name: String,
    mac: String,
    login: &'static str,
    speaks_fc_vi: bool,
    max_fcoe_bytes: u16,
    path_fcoe_bytes: Option<u16>,
    data_field_bytes: Option<u16>,
    heard_ago_ms: u64,
}

impl PortJson {
    fn new(port: &NeighbourPort) -> Self {
        Self {
            n_port_id: port.n_port_id.to_string(),
            host: port.host.map(|host| host.to_string()),
            found: port.found.map(|found| FoundJson {
                port_name: name(found.port_name),
                node_name: name(found.node_name),
                mac: found.mac.to_string(),
                login: login_state(found.login),
                speaks_fc_vi: found.speaks_fc_vi,
                max_fcoe_bytes: found.max_fcoe_bytes,
                path_fcoe_bytes: found.path_fcoe_bytes,
                data_field_bytes: found.data_field_bytes,
                heard_ago_ms: u64::try_from(found.heard_ago.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
