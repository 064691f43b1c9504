//! What VI/TCP offers beyond the guide: flow control and negotiation for each VI, security information.

mod common;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::datapath::{DatapathProcess, has_served};
use common::{End, WAIT, open_as, own_host, pattern, persist, unique_discriminator};
use pmd::config::{PortKind, TransportKind};
use vipl::{Agreement, ErrorCode, Nic, Timeout, ViBuilder, ViChoices, ViState, VipError, provider};

/// A NIC that speaks VI/TCP, on an address that only this test run has.
fn tcp(number: u32) -> Nic {
    open_as(|config| {
        let own = own_host().to_bits() ^ (number << 16);
        config.transport = TransportKind::ViTcp;
        config.host = Some(Ipv4Addr::from_bits(own).into());
    })
}

fn pair(make: impl Fn(ViBuilder) -> ViBuilder) -> [End; 2] {
    [1, 2].map(|number| End::on(tcp(number), &make))
}

/// Connects, or says why not; and what the server was told with the request.
fn connect(client: &End, server: &End) -> (Result<(), VipError>, Vec<u8>) {
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let own = client.nic.local_address(b"client").unwrap();
    thread::scope(|scope| {
        let answered = scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            let told = request.security().unwrap();
            let outcome = request.accept(&server.vi);
            if outcome.is_err() {
                request.reject().unwrap();
            }
            (outcome, told)
        });
        let asked = persist(|| client.vi.connect(&own, &address, WAIT));
        let (outcome, told) = answered.join().unwrap();
        assert_eq!(asked.is_ok(), outcome.is_ok(), "{asked:?}");
        (outcome, told)
    })
}

fn choose(end: &End, choices: &ViChoices) {
    end.vi.set_choices(choices).unwrap();
    assert_eq!(end.vi.choices().unwrap(), *choices);
}

fn negotiates() -> ViChoices {
    ViChoices {
        negotiates: true,
        ..ViChoices::default()
    }
}

#[test]
fn flow_control_is_a_choice_of_each_vi_and_takes_both() {
    for wanted in [[true, true], [true, false], [false, true]] {
        let ends = pair(|vi| vi);
        for (end, flow_control) in ends.iter().zip(wanted) {
            choose(
                end,
                &ViChoices {
                    flow_control,
                    ..ViChoices::default()
                },
            );
        }
        let [client, server] = &ends;
        connect(client, server).0.unwrap();
        let both = wanted == [true, true];
        for end in &ends {
            assert_eq!(end.vi.agreement().unwrap().flow_control, both);
        }
        client.vi.post_send(client.message(b"early")).unwrap();
        if both {
            server.vi.post_recv(server.room(8)).unwrap();
            assert_eq!(server.recv().ok().unwrap().first_bytes(), b"early");
        } else {
            assert_eq!(server.errors.next_of(&server.vi), ErrorCode::RecvqEmpty);
        }
    }
}

#[test]
fn the_lesser_transfer_size_counts_if_both_negotiate() {
    const SIZES: [u64; 2] = [10_000, 3_000];
    for (larger, smaller) in [(0, 1), (1, 0)] {
        let ends = [0, 1].map(|n| {
            let bytes = if n == larger { SIZES[0] } else { SIZES[1] };
            End::on(tcp(n as u32 + 1), |vi| vi.max_transfer_bytes(bytes))
        });
        let [client, server] = &ends;
        assert_eq!(connect(client, server).0, Err(VipError::InvalidMtu));
        choose(client, &negotiates());
        assert_eq!(connect(client, server).0, Err(VipError::InvalidMtu));
        choose(server, &negotiates());
        connect(client, server).0.unwrap();
        for end in &ends {
            let Agreement {
                max_transfer_bytes, ..
            } = end.vi.agreement().unwrap();
            assert_eq!(u64::from(max_transfer_bytes), SIZES[1]);
        }
        let (long, short) = (&ends[larger], &ends[smaller]);
        let most = pattern(1, SIZES[1] as usize);
        short.vi.post_recv(short.room(most.len())).unwrap();
        assert!(long.send(long.message(&most)).status.is_ok());
        assert!(short.recv().ok().unwrap().first_bytes() == most);
        let more = pattern(2, SIZES[1] as usize + 1);
        let refused = long.send(long.message(&more));
        assert!(refused.status.is_length_error(), "{:?}", refused.status);
        assert_eq!(long.vi.state().unwrap(), ViState::Error);
        // The next connection is another one.
        for end in &ends {
            end.vi.disconnect().unwrap();
        }
        choose(server, &ViChoices::default());
        assert_eq!(connect(client, server).0, Err(VipError::InvalidMtu));
    }
}

/// The client gets what it asked for.
#[test]
fn server_of_the_larger_transfer_size_may_negotiate_alone() {
    let client = End::on(tcp(1), |vi| vi.max_transfer_bytes(3_000));
    let server = End::on(tcp(2), |vi| vi.max_transfer_bytes(10_000));
    choose(&server, &negotiates());
    connect(&client, &server).0.unwrap();
    for end in [&client, &server] {
        assert_eq!(end.vi.agreement().unwrap().max_transfer_bytes, 3_000);
    }
}

/// Its server cannot know, as the draft has no word for it, and finds the connection lost.
#[test]
fn client_that_does_not_negotiate_refuses_to_have_less() {
    let client = End::on(tcp(1), |vi| vi.max_transfer_bytes(10_000));
    let server = End::on(tcp(2), |vi| vi.max_transfer_bytes(3_000));
    choose(&server, &negotiates());
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let own = client.nic.local_address(b"client").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            request.accept(&server.vi).unwrap();
        });
        let asked = persist(|| client.vi.connect(&own, &address, WAIT));
        assert_eq!(asked.err(), Some(VipError::InvalidMtu));
    });
    assert_eq!(client.vi.state(), Ok(ViState::Idle));
    assert_eq!(server.errors.next_of(&server.vi), ErrorCode::ConnLost);
}

#[test]
fn both_are_told_what_the_other_says_of_itself() {
    let [client, server] = pair(|vi| vi);
    let says = |bytes: &[u8]| ViChoices {
        security: bytes.to_vec(),
        ..ViChoices::default()
    };
    for (asks, answers) in [(0, 0), (1, 256), (256, 1), (64, 64)] {
        let (ours, theirs) = (pattern(1, asks), pattern(2, answers));
        choose(&client, &says(&ours));
        choose(&server, &says(&theirs));
        let (outcome, told) = connect(&client, &server);
        outcome.unwrap();
        assert_eq!(told, ours);
        assert_eq!(client.vi.agreement().unwrap().security, theirs);
        assert_eq!(server.vi.agreement().unwrap().security, ours);
        for end in [&client, &server] {
            end.vi.disconnect().unwrap();
        }
    }
}

#[test]
fn what_cannot_be_chosen_is_refused_and_nothing_changes() {
    let [client, server] = pair(|vi| vi);
    let mut choices = client.vi.choices().unwrap();
    assert_eq!(choices, ViChoices::default());
    choices.security = vec![1; ViChoices::MAX_SECURITY_BYTES + 1];
    let invalid = VipError::InvalidParameter;
    assert_eq!(client.vi.set_choices(&choices), Err(invalid));
    assert_eq!(client.vi.choices().unwrap(), ViChoices::default());
    assert_eq!(client.vi.agreement(), Err(VipError::InvalidState));
    connect(&client, &server).0.unwrap();
    assert_eq!(
        client.vi.set_choices(&ViChoices::default()),
        Err(VipError::InvalidState)
    );
    let frames = End::on(
        open_as(|config| {
            config.transport = TransportKind::FcVi;
            config.port = PortKind::Shm;
        }),
        |vi| vi,
    );
    assert_eq!(frames.vi.choices(), Err(invalid));
    assert_eq!(frames.vi.set_choices(&ViChoices::default()), Err(invalid));
    assert_eq!(frames.vi.agreement(), Err(invalid));
    let gone = client.vi.handle();
    drop(client);
    assert_eq!(provider::choices(gone), Err(invalid));
    assert_eq!(provider::agreement(gone), Err(invalid));
}

#[test]
fn a_request_whose_client_has_gone_says_so() {
    let [client, server] = pair(|vi| vi);
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let own = client.nic.local_address(b"client").unwrap();
    let told = AtomicBool::new(false);
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let shortly = Timeout::After(std::time::Duration::from_millis(200));
            // Until the server has been told of one: a request that times out before is taken back.
            while !told.load(Ordering::Relaxed) {
                let asked = client.vi.connect(&own, &address, shortly);
                assert!(matches!(asked, Err(VipError::Timeout | VipError::NoMatch)));
            }
        });
        let request = server.nic.connect_wait(&address, WAIT).unwrap();
        told.store(true, Ordering::Relaxed);
        asked.join().unwrap();
        while request.security().is_ok() {
            thread::yield_now();
        }
        assert_eq!(request.security(), Err(VipError::Timeout));
    });
}

/// One end, then the other one, on a NIC that a datapath process has.
#[test]
fn through_a_datapath_process_it_is_the_same() {
    if has_served() {
        return;
    }
    let host = Ipv4Addr::from_bits(own_host().to_bits() ^ (3 << 16));
    let keys = format!("transport = \"vi-tcp\"\nhost = \"{host}\"\n");
    let name = "through_a_datapath_process_it_is_the_same";
    let process = DatapathProcess::start_with(name, &keys, "");
    let attached = || Nic::attach(&process.socket(), "VINIC0").unwrap();
    for is_client in [true, false] {
        let ends = [true, false].map(|first| {
            let nic = if first == is_client {
                attached()
            } else {
                tcp(1)
            };
            End::on(nic, |vi| {
                vi.max_transfer_bytes(if first { 9_000 } else { 5_000 })
            })
        });
        let [client, server] = &ends;
        for (end, security) in ends.iter().zip([b"asks", b"says"]) {
            choose(
                end,
                &ViChoices {
                    flow_control: true,
                    negotiates: true,
                    security: security.to_vec(),
                },
            );
        }
        let (outcome, told) = connect(client, server);
        outcome.unwrap();
        assert_eq!(told, b"asks");
        for (end, security) in ends.iter().zip([b"says", b"asks"]) {
            let agreed = Agreement {
                flow_control: true,
                max_transfer_bytes: 5_000,
                security: security.to_vec(),
            };
            assert_eq!(end.vi.agreement(), Ok(agreed));
            let changed = end.vi.set_choices(&ViChoices::default());
            assert_eq!(changed, Err(VipError::InvalidState));
        }
        for (from, to) in [(client, server), (server, client)] {
            from.vi.post_send(from.message(&pattern(1, 5_000))).unwrap();
            to.vi.post_recv(to.room(5_000)).unwrap();
            assert!(to.recv().ok().unwrap().first_bytes() == pattern(1, 5_000));
            assert!(from.vi.send_wait(WAIT).unwrap().unwrap().status.is_ok());
        }
        let long = client.send(client.message(&pattern(2, 5_001)));
        assert!(long.status.is_length_error(), "{:?}", long.status);
    }
    process.stop();
}
