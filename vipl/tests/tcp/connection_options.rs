//! Options of VI/TCP for each VI, beyond the guide: flow control, negotiated transfer size, security information.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::datapath::with_process_of;
use crate::common::{
    Endpoint, WAIT, deliver, open_as, pattern, segment, tcp, tcp_host, unique_discriminator,
};
use pmd::config::Network;
use vipl::{
    ConnectionOptions, ErrorCode, NegotiatedOptions, Timeout, ViBuilder, ViState, VipError,
    provider,
};

fn pair(configure: impl Fn(ViBuilder) -> ViBuilder) -> [Endpoint; 2] {
    [21, 22].map(|number| Endpoint::on(tcp(number), &configure))
}

/// Connects; returns the result of the accept and the security information of the request.
fn connect(client: &Endpoint, server: &Endpoint) -> (Result<(), VipError>, Vec<u8>) {
    let address = server.address(&unique_discriminator());
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            let security = request.security().unwrap();
            let accepted = request.accept(&server.vi);
            if accepted.is_err() {
                request.reject().unwrap();
            }
            (accepted, security)
        });
        let connected = client.request(&address);
        let (accepted, security) = served.join().unwrap();
        assert_eq!(connected.is_ok(), accepted.is_ok(), "{connected:?}");
        (accepted, security)
    })
}

fn set_options(end: &Endpoint, options: &ConnectionOptions) {
    end.vi.set_connection_options(options).unwrap();
    assert_eq!(end.vi.connection_options().unwrap(), *options);
}

fn disconnect(ends: &[Endpoint; 2]) {
    for end in ends {
        end.vi.disconnect().unwrap();
    }
}

fn negotiated_bytes(end: &Endpoint) -> u64 {
    end.vi
        .negotiated_options()
        .unwrap()
        .max_transfer_bytes
        .into()
}

fn negotiating() -> ConnectionOptions {
    ConnectionOptions {
        negotiate_mtu: true,
        ..ConnectionOptions::default()
    }
}

#[test]
fn flow_control_is_used_only_if_both_vis_enable_it() {
    for wanted in [[true, true], [true, false], [false, true]] {
        let ends = pair(|vi| vi);
        for (end, flow_control) in ends.iter().zip(wanted) {
            let options = ConnectionOptions {
                flow_control,
                ..ConnectionOptions::default()
            };
            set_options(end, &options);
        }
        let [client, server] = &ends;
        connect(client, server).0.unwrap();
        let both = wanted == [true, true];
        for end in &ends {
            assert_eq!(end.vi.negotiated_options().unwrap().flow_control, both);
        }
        client.post_message(b"early");
        if both {
            server.post_receives(1, 8);
            server.expect_message(b"early");
        } else {
            server.expect_errors(&[ErrorCode::RecvqEmpty]);
        }
    }
}

#[test]
fn negotiated_transfer_size_is_the_smaller_one() {
    const SIZES: [u64; 2] = [10_000, 3_000];
    for (larger, smaller) in [(0, 1), (1, 0)] {
        let ends = [0, 1].map(|n| {
            let bytes = if n == larger { SIZES[0] } else { SIZES[1] };
            Endpoint::on(tcp(n as u32 + 21), |vi| vi.max_transfer_bytes(bytes))
        });
        let [client, server] = &ends;
        assert_eq!(connect(client, server).0, Err(VipError::InvalidMtu));
        set_options(client, &negotiating());
        assert_eq!(connect(client, server).0, Err(VipError::InvalidMtu));
        set_options(server, &negotiating());
        connect(client, server).0.unwrap();
        for end in &ends {
            assert_eq!(negotiated_bytes(end), SIZES[1]);
        }
        let (long, short) = (&ends[larger], &ends[smaller]);
        deliver(long, short, &pattern(1, SIZES[1] as usize));
        let more = pattern(2, SIZES[1] as usize + 1);
        let refused = long.send(long.message(&more));
        assert!(refused.status.is_length_error(), "{:?}", refused.status);
        assert_eq!(long.vi.state().unwrap(), ViState::Error);
        // The next connection negotiates again.
        disconnect(&ends);
        set_options(server, &ConnectionOptions::default());
        assert_eq!(connect(client, server).0, Err(VipError::InvalidMtu));
    }
}

/// The client gets the size that it requested.
#[test]
fn server_with_the_larger_transfer_size_may_negotiate_alone() {
    let client = Endpoint::on(tcp(21), |vi| vi.max_transfer_bytes(3_000));
    let server = Endpoint::on(tcp(22), |vi| vi.max_transfer_bytes(10_000));
    set_options(&server, &negotiating());
    connect(&client, &server).0.unwrap();
    for end in [&client, &server] {
        assert_eq!(negotiated_bytes(end), 3_000);
    }
}

/// The draft has no message for the server in this case: it reports a lost connection.
#[test]
fn client_without_negotiation_refuses_a_smaller_transfer_size() {
    let client = Endpoint::on(tcp(21), |vi| vi.max_transfer_bytes(10_000));
    let server = Endpoint::on(tcp(22), |vi| vi.max_transfer_bytes(3_000));
    set_options(&server, &negotiating());
    let address = server.address(&unique_discriminator());
    thread::scope(|scope| {
        scope.spawn(|| server.accept(&address));
        assert_eq!(client.request(&address), Err(VipError::InvalidMtu));
    });
    assert_eq!(client.vi.state(), Ok(ViState::Idle));
    server.expect_errors(&[ErrorCode::ConnLost]);
}

#[test]
fn security_information_is_exchanged() {
    let ends = pair(|vi| vi);
    let [client, server] = &ends;
    let options = |security: &[u8]| ConnectionOptions {
        security: security.to_vec(),
        ..ConnectionOptions::default()
    };
    for (client_bytes, server_bytes) in [(0, 0), (1, 256), (256, 1), (64, 64)] {
        let of_client = pattern(1, client_bytes);
        let of_server = pattern(2, server_bytes);
        set_options(client, &options(&of_client));
        set_options(server, &options(&of_server));
        let (accepted, in_request) = connect(client, server);
        accepted.unwrap();
        assert_eq!(in_request, of_client);
        assert_eq!(client.vi.negotiated_options().unwrap().security, of_server);
        assert_eq!(server.vi.negotiated_options().unwrap().security, of_client);
        disconnect(&ends);
    }
}

#[test]
fn invalid_options_are_refused_and_change_nothing() {
    let [client, server] = pair(|vi| vi);
    let (default, invalid) = (ConnectionOptions::default(), VipError::InvalidParameter);
    let long = ConnectionOptions {
        security: vec![1; ConnectionOptions::MAX_SECURITY_BYTES + 1],
        ..default.clone()
    };
    assert_eq!(client.vi.set_connection_options(&long), Err(invalid));
    assert_eq!(client.vi.connection_options(), Ok(default.clone()));
    assert_eq!(client.vi.negotiated_options(), Err(VipError::InvalidState));
    connect(&client, &server).0.unwrap();
    let changed = client.vi.set_connection_options(&default);
    assert_eq!(changed, Err(VipError::InvalidState));
    let fc_vi = open_as(|config| {
        config.network = Network::segment(segment());
    });
    let fc_vi = Endpoint::on(fc_vi, |vi| vi);
    assert_eq!(fc_vi.vi.connection_options(), Err(invalid));
    assert_eq!(fc_vi.vi.set_connection_options(&default), Err(invalid));
    assert_eq!(fc_vi.vi.negotiated_options(), Err(invalid));
    let destroyed = client.vi.handle();
    drop(client);
    assert_eq!(provider::connection_options(destroyed), Err(invalid));
    assert_eq!(provider::negotiated_options(destroyed), Err(invalid));
}

#[test]
fn request_of_a_timed_out_client_reports_timeout() {
    let [client, server] = pair(|vi| vi);
    let address = server.address(&unique_discriminator());
    let own = client.address(b"client");
    let is_received = AtomicBool::new(false);
    thread::scope(|scope| {
        let requests = scope.spawn(|| {
            let short = Timeout::After(std::time::Duration::from_millis(200));
            // Until the server has received one: a request that times out before is withdrawn.
            while !is_received.load(Ordering::Relaxed) {
                let refused = client.vi.connect(&own, &address, short).unwrap_err();
                assert!(matches!(refused, VipError::Timeout | VipError::NoMatch));
            }
        });
        let request = server.nic.connect_wait(&address, WAIT).unwrap();
        is_received.store(true, Ordering::Relaxed);
        requests.join().unwrap();
        while request.security().is_ok() {
            thread::yield_now();
        }
        assert_eq!(request.security(), Err(VipError::Timeout));
    });
}

/// The client, then the server, is attached to a datapath process.
#[test]
fn options_are_negotiated_through_a_datapath_process() {
    let host = tcp_host(23);
    let keys = format!("vi_tcp = {{}}\nhost = \"{host}\"\n");
    let test = "options_are_negotiated_through_a_datapath_process";
    with_process_of(test, &keys, "", |process| {
        for is_client in [true, false] {
            let ends = [(true, 9_000), (false, 5_000)].map(|(first, bytes)| {
                let nic = match first == is_client {
                    true => process.attach(),
                    false => tcp(21),
                };
                Endpoint::on(nic, |vi| vi.max_transfer_bytes(bytes))
            });
            let [client, server] = &ends;
            for (end, security) in ends.iter().zip([b"client", b"server"]) {
                let options = ConnectionOptions {
                    flow_control: true,
                    negotiate_mtu: true,
                    security: security.to_vec(),
                };
                set_options(end, &options);
            }
            let (accepted, in_request) = connect(client, server);
            accepted.unwrap();
            assert_eq!(in_request, b"client");
            for (end, security) in ends.iter().zip([b"server", b"client"]) {
                let negotiated = NegotiatedOptions {
                    flow_control: true,
                    max_transfer_bytes: 5_000,
                    security: security.to_vec(),
                };
                assert_eq!(end.vi.negotiated_options(), Ok(negotiated));
                let changed = end.vi.set_connection_options(&ConnectionOptions::default());
                assert_eq!(changed, Err(VipError::InvalidState));
            }
            for (from, to) in [(client, server), (server, client)] {
                from.post_message(&pattern(1, 5_000));
                to.post_receives(1, 5_000);
                to.expect_message(&pattern(1, 5_000));
                from.expect_sent(1);
            }
            let long = client.send(client.message(&pattern(2, 5_001)));
            assert!(long.status.is_length_error(), "{:?}", long.status);
        }
    });
}
