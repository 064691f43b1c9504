use crate::nic::NicSettings;
use pmd::config::{FaultConfig, FcVi, Network, NicConfig};

use super::*;
use crate::plan::{MAX_SIZE_BYTES, Op};

#[test]
fn messages_fit_and_round_trip() {
    let test = Test::new(
        Benchmark::Bandwidth,
        Op::Write,
        ReliabilityLevel::UnreliableDelivery,
        MAX_SIZE_BYTES,
        256,
        Some(1024),
    )
    .unwrap();
    let memory = RemoteMemory {
        handle: u32::MAX,
        credit_address: u64::MAX,
        recv_address: u64::MAX,
        recv_stride_bytes: u64::MAX,
        send_address: u64::MAX,
        send_stride_bytes: u64::MAX,
    };
    let round = RawRound {
        benchmark: Benchmark::Bandwidth,
        frames: Frames {
            count: u32::MAX,
            full_bytes: u32::MAX,
            last_bytes: u32::MAX,
        },
        mac: [255; 6],
    };
    let result = RoundResult {
        delivered: u64::MAX,
        timed: u64::MAX,
        elapsed_ns: u64::MAX,
        broken: Some("descriptor: ".repeat(8)),
    };
    for message in [
        Message::Hello { version: u32::MAX },
        Message::Open {
            test,
            number: u32::MAX,
            memory,
            joins: false,
        },
        Message::Round,
        Message::Stop { sent: u64::MAX },
        Message::Close,
        Message::RawOpen,
        Message::RawRound(round),
        Message::RawStop,
        Message::Quit,
        Message::Ready,
        Message::Opened { memory },
        Message::RawOpened(RawAddress::Station {
            mac: [255; 6],
            max_frame_bytes: usize::MAX,
        }),
        Message::RawOpened(RawAddress::TcpPort(u16::MAX)),
        Message::StreamRound(StreamRound::of(&test)),
        Message::Finished(result),
        Message::Refused("no".into()),
    ] {
        let bytes = serde_json::to_vec(&message).unwrap();
        assert!(
            NUMBER_BYTES + bytes.len() <= MESSAGE_BYTES as usize,
            "{message:?}"
        );
        let back: Message = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(back, message);
    }
}

/// Opens a NIC that loses a fifth of its frames on transmission.
fn lossy_nic(seed: u64) -> Nic {
    Nic::open(&NicSettings::own(NicConfig {
        name: "VINIC0".into(),
        ulp_timeout_ms: Some(40),
        fc_vi: FcVi {
            fault: Some(FaultConfig {
                seed,
                loss_ppm: 200_000,
                ..FaultConfig::default()
            }),
            ..FcVi::default()
        },
        network: Network::segment(format!("vibench-lossy-{}", std::process::id())),
        ..NicConfig::default()
    }))
    .unwrap()
}

#[test]
fn every_request_gets_its_response_despite_frame_loss() {
    const REQUESTS: u64 = 50;
    let address = || discriminator("lossy", Purpose::Control, ConnectRole::Listener).unwrap();
    let server = std::thread::spawn(move || {
        let nic = lossy_nic(1);
        let mut channel = Channel::for_server(&nic).unwrap();
        let local = nic.local(address());
        let limit = vipl::Timeout::After(RESPONSE_TIMEOUT);
        let found = vipl::provider::connect_wait(nic.handle(), &local, limit).unwrap();
        channel.endpoint().accept(found.conn).unwrap();
        for expected in 0..REQUESTS {
            let request = channel.receive(Some(RESPONSE_TIMEOUT), || Ok(())).unwrap();
            assert_eq!(request, Message::Stop { sent: expected });
            assert!(channel.has_pending_request());
            let result = RoundResult {
                delivered: expected,
                ..RoundResult::default()
            };
            channel.respond(&Message::Finished(result)).unwrap();
            assert!(!channel.has_pending_request());
        }
        // Until the client disconnects: the last response may have been lost.
        assert!(channel.receive(None, || Ok(())).is_err());
    });
    let nic = lossy_nic(2);
    let mut channel = Channel::for_client(&nic).unwrap();
    let local =
        nic.local(discriminator("lossy", Purpose::Control, ConnectRole::Requester).unwrap());
    connect(channel.endpoint(), &local, &nic.local(address()), || Ok(())).unwrap();
    for sent in 0..REQUESTS {
        let result = channel.request_result(&Message::Stop { sent }).unwrap();
        assert_eq!(result.delivered, sent);
    }
    channel.endpoint().disconnect().unwrap();
    server.join().unwrap();
}

#[test]
fn discriminators_fit_and_differ() {
    // The maximum process ID of Linux.
    let process = (1 << 22).to_string();
    let purposes = [
        Purpose::Control,
        Purpose::Data(999_999),
        Purpose::Data(12),
        Purpose::Connections,
    ];
    let mut names = Vec::new();
    for purpose in purposes {
        for role in [ConnectRole::Requester, ConnectRole::Listener] {
            for tag in [process.as_str(), "public"] {
                names.push(discriminator(tag, purpose, role).unwrap());
            }
        }
    }
    for (at, name) in names.iter().enumerate() {
        assert!(!names[..at].contains(name), "{name:?}");
    }
    assert!(discriminator("public-and-long", Purpose::Control, ConnectRole::Listener).is_err());
}
