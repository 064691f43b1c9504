use crate::nic::Choice;
use pmd::config::{FaultConfig, NicConfig};

use super::*;
use crate::plan::{MAX_SIZE_BYTES, Op};

#[test]
fn every_message_fits_and_comes_back() {
    let test = Test::new(
        Benchmark::Bandwidth,
        Op::Write,
        Level::Ud,
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
    let seen = Seen {
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
        Message::RawOpened(RawPlace::Station {
            mac: [255; 6],
            max_frame_bytes: usize::MAX,
        }),
        Message::RawOpened(RawPlace::TcpPort(u16::MAX)),
        Message::StreamRound(StreamRound::of(&test)),
        Message::Finished(seen),
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

/// A NIC that loses a fifth of what it sends.
fn lossy_nic(seed: u64) -> Nic {
    Nic::open(&Choice::own(NicConfig {
        name: "VINIC0".into(),
        segment: format!("vibench-lossy-{}", std::process::id()),
        ulp_timeout_ms: Some(40),
        fault: Some(FaultConfig {
            seed,
            loss_ppm: 200_000,
            ..FaultConfig::default()
        }),
        ..NicConfig::default()
    }))
    .unwrap()
}

#[test]
fn every_question_has_its_own_answer_though_frames_are_lost() {
    const QUESTIONS: u64 = 50;
    let address = || discriminator("lossy", Purpose::Control, Party::Waiting).unwrap();
    let answering = std::thread::spawn(move || {
        let nic = lossy_nic(1);
        let mut channel = Channel::answering(&nic).unwrap();
        let local = nic.local(address());
        let limit = vipl::Timeout::After(ANSWER_TIMEOUT);
        let found = vipl::provider::connect_wait(nic.handle(), &local, limit).unwrap();
        channel.endpoint().accept(found.conn).unwrap();
        for expected in 0..QUESTIONS {
            let asked = channel.receive(Some(ANSWER_TIMEOUT), || Ok(())).unwrap();
            assert_eq!(asked, Message::Stop { sent: expected });
            assert!(channel.owes_answer());
            let seen = Seen {
                delivered: expected,
                ..Seen::default()
            };
            channel.answer(&Message::Finished(seen)).unwrap();
            assert!(!channel.owes_answer());
        }
        // Until the asker is gone: its last answer may have been lost.
        assert!(channel.receive(None, || Ok(())).is_err());
    });
    let nic = lossy_nic(2);
    let mut channel = Channel::asking(&nic).unwrap();
    let local = nic.local(discriminator("lossy", Purpose::Control, Party::Asking).unwrap());
    connect(channel.endpoint(), &local, &nic.local(address()), || Ok(())).unwrap();
    for sent in 0..QUESTIONS {
        let seen = channel.ask_seen(&Message::Stop { sent }).unwrap();
        assert_eq!(seen.delivered, sent);
    }
    channel.endpoint().disconnect().unwrap();
    answering.join().unwrap();
}

#[test]
fn discriminators_fit_and_differ() {
    // The greatest number of a process that Linux gives.
    let process = (1 << 22).to_string();
    let purposes = [
        Purpose::Control,
        Purpose::Data(999_999),
        Purpose::Data(12),
        Purpose::Connections,
    ];
    let mut names = Vec::new();
    for purpose in purposes {
        for party in [Party::Asking, Party::Waiting] {
            for tag in [process.as_str(), "public"] {
                names.push(discriminator(tag, purpose, party).unwrap());
            }
        }
    }
    for (at, name) in names.iter().enumerate() {
        assert!(!names[..at].contains(name), "{name:?}");
    }
    assert!(discriminator("public-and-long", Purpose::Control, Party::Waiting).is_err());
}
