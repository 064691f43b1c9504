use super::*;
use crate::config::{Network, NicConfig};
use crate::network_view::OwnState;
use crate::nic;

/// Two configurations of NICs on one segment: two NICs of this process.
fn configs(test: &str) -> [NicConfig; 2] {
    ["one", "two"].map(|name| NicConfig {
        name: name.into(),
        network: Network::segment(format!("unit-{}-{test}", std::process::id())),
        ..NicConfig::default()
    })
}

#[test]
fn segment_view_changes_when_stations_join_and_leave() {
    let [one, two] = configs("network_view");
    let one = nic::open(&one).unwrap();
    let alone = network_view(one).unwrap();
    assert_eq!(
        (alone.own.state, alone.own.discovers),
        (OwnState::Up, false)
    );
    assert!(alone.own.n_port_id.is_some());
    assert!(alone.ports.is_empty());
    let unchanged = await_network_change(one, &alone, Some(Duration::ZERO));
    assert!(unchanged.unwrap().is_none());

    let two = nic::open(&two).unwrap();
    let both = await_network_change(one, &alone, None).unwrap().unwrap();
    let other = network_view(two).unwrap().own;
    assert_eq!(both.ports.len(), 1);
    assert_eq!(Some(both.ports[0].n_port_id), other.n_port_id);
    assert_eq!(both.ports[0].host, Some(other.host));
    assert!(both.ports[0].found.is_none());

    nic::close(two).unwrap();
    let after = await_network_change(one, &both, None).unwrap().unwrap();
    assert!(after.is_same(&alone));
    nic::close(one).unwrap();
    assert_eq!(network_view(one).unwrap_err(), CallError::InvalidParameter);
}

#[test]
fn await_network_change_fails_when_the_nic_is_closed() {
    let [one, _] = configs("network_view-closed");
    let one = nic::open(&one).unwrap();
    let known = network_view(one).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| await_network_change(one, &known, None));
        nic::close(one).unwrap();
        let result = waiting.join().unwrap();
        assert_eq!(result.unwrap_err(), CallError::InvalidParameter);
    });
}
