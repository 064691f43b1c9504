//! What is said of ports: as text, as JSON.

use std::io::{self, Write};

use pmd::nic::{FoundPort, LoginState, NeighbourPort, Neighbourhood, OwnPort, OwnState};
use serde::Serialize;

/// What became of a neighbour.
#[derive(Clone, Copy, Debug)]
pub enum News {
    /// It was there from the beginning.
    Is(NeighbourPort),
    /// It was not there before.
    Appeared(NeighbourPort),
    /// Something about it is different.
    Changed(NeighbourPort),
    /// It is there no more.
    Gone(NeighbourPort),
}

impl News {
    fn word(self) -> &'static str {
        match self {
            Self::Is(_) => "neighbour",
            Self::Appeared(_) => "appeared",
            Self::Changed(_) => "changed",
            Self::Gone(_) => "gone",
        }
    }

    fn port(&self) -> &NeighbourPort {
        match self {
            Self::Is(port) | Self::Appeared(port) | Self::Changed(port) | Self::Gone(port) => port,
        }
    }
}

/// What is different: ends first. A port that has another N_Port_ID is another neighbour.
#[must_use]
pub fn news(before: &Neighbourhood, now: &Neighbourhood) -> Vec<News> {
    let key = |port: &NeighbourPort| (port.n_port_id, port.found.map(|found| found.port_name));
    let find = |all: &Neighbourhood, port: &NeighbourPort| {
        let mut ports = all.ports.iter();
        ports.find(|other| key(other) == key(port)).copied()
    };
    let gone = before.ports.iter().copied();
    let gone = gone.filter(|port| find(now, port).is_none());
    let there = now.ports.iter().filter_map(|port| {
        Some(match find(before, port) {
            None => News::Appeared(*port),
            Some(old) if old.is_same(port) => return None,
            Some(_) => News::Changed(*port),
        })
    });
    gone.map(News::Gone).chain(there).collect()
}

/// How it is said.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The NIC's name.
    pub nic: &'a str,
    /// As JSON.
    pub json: bool,
}

impl Report<'_> {
    /// Our port and its neighbours: a line each, or one object.
    ///
    /// # Errors
    /// Those of writing.
    pub fn list(&self, out: &mut impl Write, all: &Neighbourhood) -> io::Result<()> {
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
        self.news(out, all.ports.iter().copied().map(News::Is))
    }

    /// Our port, and where its neighbours come from: a line, or an object.
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

    /// Neighbours: a line each, or an object each.
    ///
    /// # Errors
    /// Those of writing.
    pub fn news(
        &self,
        out: &mut impl Write,
        news: impl IntoIterator<Item = News>,
    ) -> io::Result<()> {
        for news in news {
            if self.json {
                let neighbour = PortJson::new(news.port());
                line(
                    out,
                    &EventJson::Neighbour {
                        event: news.word(),
                        neighbour,
                    },
                )?;
            } else {
                writeln!(out, "{}", text(news))?;
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

fn text(news: News) -> String {
    let port = news.port();
    let host = port
        .host
        .map_or("unknown".to_owned(), |host| host.to_string());
    let begin = format!("{}: N_Port_ID {}", news.word(), port.n_port_id);
    let Some(found) = &port.found else {
        return format!("{begin}, host {host}");
    };
    format!(
        "{begin}, Port_Name {}, Node_Name {}, {}, host {host}, MAC {}, {}, FC-VI {}, heard {:.1} s ago",
        name(found.port_name),
        name(found.node_name),
        login_state(found.login),
        found.mac,
        size(found),
        if found.speaks_fc_vi { "yes" } else { "no" },
        found.heard_ago.as_secs_f64(),
    )
}

fn size(found: &FoundPort) -> String {
    match (found.data_field_bytes, found.path_fcoe_bytes) {
        (Some(bytes), _) => format!("data fields of {bytes} bytes"),
        (None, Some(bytes)) => format!("FCoE frames of {bytes} bytes"),
        (None, None) => format!(
            "FCoE frames of {} bytes, not proved yet",
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

/// The whole list.
#[derive(Serialize)]
struct ListJson<'a> {
    own: OwnJson<'a>,
    neighbours: Vec<PortJson>,
}

/// A line of a watch.
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
