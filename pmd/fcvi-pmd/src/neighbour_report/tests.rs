use std::time::Duration;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::*;

fn port(id: u32, login: LoginState) -> NeighbourPort {
    NeighbourPort {
        n_port_id: NPortId::new(id).unwrap(),
        host: (login == LoginState::LoggedIn).then(|| HostAddress::from_ipv4([192, 0, 2, 1])),
        found: Some(DiscoveredPort {
            port_name: 0x2000_5254_0000_0000 | u64::from(id),
            node_name: 0x1000_5254_0000_0000 | u64::from(id),
            mac: MacAddress([0x52, 0x54, 0, 0, 0, 1]),
            max_fcoe_bytes: 2158,
            path_fcoe_bytes: None,
            speaks_fc_vi: true,
            login,
            data_field_bytes: None,
            heard_ago: Duration::from_millis(1500),
        }),
    }
}

fn network_view(ports: Vec<NeighbourPort>) -> NetworkView {
    NetworkView {
        own: OwnPort {
            n_port_id: NPortId::new(9),
            port_name: 0x2000_5254_0000_0009,
            node_name: 0x1000_5254_0000_0009,
            host: HostAddress::from_ipv4([192, 0, 2, 9]),
            state: OwnState::Up,
            discovers: true,
        },
        ports,
    }
}

fn list_text(json: bool, all: &NetworkView) -> String {
    let mut out = Vec::new();
    let report = Report {
        nic: "VINIC0",
        json,
    };
    report.list(&mut out, all).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn changes_are_disappeared_changed_and_new_ports() {
    use LoginState::{Found, LoggedIn};
    let before = network_view(vec![port(1, Found), port(2, Found), port(3, Found)]);
    let mut later = port(3, Found);
    later.found.as_mut().unwrap().heard_ago = Duration::ZERO;
    let now = network_view(vec![port(2, LoggedIn), later, port(4, Found)]);
    let words: Vec<_> = changes(&before, &now)
        .iter()
        .map(|event| (event.word(), event.port().n_port_id.get()))
        .collect();
    assert_eq!(words, [("gone", 1), ("changed", 2), ("appeared", 4)]);
}

#[test]
fn list_is_the_own_port_and_a_line_for_each_neighbour() {
    let lines = list_text(false, &network_view(vec![port(1, LoginState::LoggedIn)]));
    let expected = "VINIC0: N_Port_ID 00.00.09, Port_Name 20:00:52:54:00:00:00:09, Node_Name 10:00:52:54:00:00:00:09, \
                    host 192.0.2.9, up; neighbours are discovered\n\
                    neighbour: N_Port_ID 00.00.01, Port_Name 20:00:52:54:00:00:00:01, Node_Name 10:00:52:54:00:00:00:01, \
                    logged in, host 192.0.2.1, MAC 52:54:00:00:00:01, FCoE frames of 2158 bytes, \
                    not verified yet, FC-VI yes, last seen 1.5 s ago\n";
    assert_eq!(lines, expected);
    assert!(list_text(false, &network_view(vec![])).ends_with("\nno neighbours\n"));
}

#[test]
fn list_reports_configured_neighbours_as_not_discovered() {
    let mut all = network_view(vec![NeighbourPort {
        found: None,
        ..port(1, LoginState::LoggedIn)
    }]);
    all.own.discovers = false;
    let lines = list_text(false, &all);
    assert!(lines.contains("; no discovery: "), "{lines}");
    assert!(
        lines.ends_with("\nneighbour: N_Port_ID 00.00.01, host 192.0.2.1\n"),
        "{lines}"
    );
}

#[test]
fn json_list_has_the_same_content() {
    let text = list_text(true, &network_view(vec![port(1, LoginState::Found)]));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["own"]["state"], "up");
    assert_eq!(json["own"]["n_port_id"], "00.00.09");
    let [neighbour] = json["neighbours"].as_array().unwrap().as_slice() else {
        panic!("{text}");
    };
    assert_eq!(neighbour["port_name"], "20:00:52:54:00:00:00:01");
    assert_eq!(neighbour["login"], "found");
    assert_eq!(neighbour["host"], serde_json::Value::Null);
    assert_eq!(neighbour["heard_ago_ms"], 1500);
}
