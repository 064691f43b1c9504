//! A station that forges frames beside a pair of ports. It knows what is sent to all, names and addresses, and sends any
//! frame; it does not see frames between the two.

use fcvi_frame::els::{
    ACCEPT, Adisc, Class3Parameters, ElsCommand, Login, LoginFeatures, Logo, LsRjt,
    READ_TIMEOUT_VALUES, RejectExplanation, RejectReason,
};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fip::{
    Claim, Fc4Attributes, Vn2vnFrame, Vn2vnMessage, VnPort as VnPortOfClaim, VnPortId,
};
use fcvi_frame::{MacAddress, profile};
use protocol_testkit::rng::Rng;
use protocol_testkit::time::{MS, S};

use super::{Link, counter};
use crate::login::{Carrier, ElsOut, FipService};
use crate::vn_port::{emit_fcoe, emit_fip};
use crate::vn2vn::Vn2vnState;

/// What the forger knows of a port.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: NPortId,
    port_name: u64,
    node_name: u64,
    enode_mac: MacAddress,
}

fn known(link: &Link, at: usize) -> Known {
    let config = link.node(at).port.discovery.config();
    Known {
        id: link.node(at).id.expect("an N_Port_ID"),
        port_name: config.port_name,
        node_name: config.node_name,
        enode_mac: config.enode_mac,
    }
}

fn low_id(rng: &mut Rng) -> NPortId {
    NPortId::new(1 + rng.below(0xFFFE) as u32).expect("24 bits")
}

/// Returns a frame of discovery of this port.
fn vn2vn_frame(
    port: Known,
    message: Vn2vnMessage,
    recorded: bool,
    dst: MacAddress,
    pdu_bytes: usize,
) -> Vec<u8> {
    let frame = Vn2vnFrame {
        recorded,
        port: VnPortOfClaim {
            enode_mac: port.enode_mac,
            node_name: port.node_name,
            id: VnPortId {
                mac: MacAddress::vn2vn(port.id),
                n_port_id: port.id,
                port_name: port.port_name,
            },
        },
        message,
    };
    let mut bytes = vec![0; frame.bytes().max(14 + pdu_bytes)];
    frame.emit(dst, 14 + pdu_bytes, &mut bytes).expect("room");
    bytes
}

fn claim(max_fcoe_bytes: u16) -> Claim {
    Claim {
        fc4: Fc4Attributes::default().with(FcType::Vi, 0),
        max_fcoe_bytes,
    }
}

/// Returns a random frame of discovery in the name of `peer`, with up to one change, to all or to `target`.
fn discovery_frame(rng: &mut Rng, target: Known, peer: Known) -> Vec<u8> {
    let mut port = peer;
    match rng.below(8) {
        0 => port.id = low_id(rng),
        1 => port.enode_mac.0[5] ^= 1 << rng.below(8),
        2 => port.port_name ^= 1 << rng.below(62),
        3 => port.port_name = u64::MAX >> rng.below(3),
        4 => port.node_name += 1,
        5 => port.id = target.id,
        6 => (port.id, port.port_name) = (target.id, u64::MAX),
        _ => {}
    }
    let claim = claim([2158, 1500, 302, 2158][rng.below(4) as usize]);
    let message = match rng.below(6) {
        0 => Vn2vnMessage::ProbeRequest,
        1 => Vn2vnMessage::ProbeReply,
        2 => Vn2vnMessage::ClaimResponse(claim),
        3 => Vn2vnMessage::Beacon,
        _ => Vn2vnMessage::ClaimNotification(claim),
    };
    let recorded = rng.below(8) == 0;
    let dst = [MacAddress::ALL_VN2VN, target.enode_mac][rng.below(2) as usize];
    vn2vn_frame(
        port,
        message,
        recorded,
        dst,
        [0, 2158][rng.below(2) as usize],
    )
}

/// Returns the payload of a random link service in the name of `peer`.
fn payload(rng: &mut Rng, peer: Known) -> Vec<u8> {
    let port_name = peer.port_name ^ u64::from(rng.below(4) == 0);
    let n_port_id = if rng.below(4) == 0 {
        low_id(rng)
    } else {
        peer.id
    };
    match rng.below(8) {
        0 | 1 => {
            let mut out = [0; Logo::BYTES];
            Logo {
                n_port_id,
                port_name,
            }
            .emit(&mut out);
            out.to_vec()
        }
        kind @ 2..=4 => {
            let receive_bytes = [2112, 512, 256, 64][rng.below(4) as usize];
            let login = Login {
                credit: 10,
                features: LoginFeatures::CONTINUOUS_OFFSET,
                receive_bytes,
                total_sequences: 255,
                relative_offset: 0x1F,
                e_d_tov: 2000,
                port_name,
                node_name: peer.node_name,
                class3: Class3Parameters {
                    service: Class3Parameters::VALID,
                    receive_bytes,
                    concurrent_sequences: 255,
                    open_sequences: 1,
                },
            };
            let commands = [ElsCommand::Flogi, ElsCommand::Plogi, ElsCommand::LsAcc];
            let mut out = [0; Login::BYTES];
            login.emit(commands[kind as usize - 2], &mut out);
            out.to_vec()
        }
        5 => {
            let adisc = Adisc {
                n_port_id,
                port_name,
                ..Adisc::default()
            };
            let mut out = [0; Adisc::BYTES];
            match rng.below(2) {
                0 => adisc.emit_request(&mut out),
                _ => adisc.emit_accept(&mut out),
            }
            out.to_vec()
        }
        6 => {
            let mut out = [0; LsRjt::BYTES];
            LsRjt {
                reason: RejectReason::UnableToPerform,
                explanation: RejectExplanation::LoginRequired,
            }
            .emit(&mut out);
            out.to_vec()
        }
        _ => [READ_TIMEOUT_VALUES, ACCEPT][rng.below(2) as usize].to_vec(),
    }
}

/// Returns a random link service in the name of `peer`, as a request or a reply.
fn link_service(rng: &mut Rng, target: Known, peer: Known) -> Vec<u8> {
    let mut payload = payload(rng, peer);
    let command = ElsCommand::parse(&payload).expect("a command");
    let is_reply = matches!(command, ElsCommand::LsAcc | ElsCommand::LsRjt);
    let is_abort = rng.below(16) == 0;
    let (r_ctl, f_ctl, fc_type) = match is_reply {
        _ if is_abort => {
            payload.clear();
            let f_ctl = FCtl::END_SEQUENCE.union(FCtl::EXCHANGE_RESPONDER);
            (RCtl::Abts, f_ctl, FcType::Bls)
        }
        true => (RCtl::ElsReply, profile::F_CTL_FINAL_REPLY, FcType::Els),
        false => (RCtl::ElsRequest, profile::F_CTL_REQUEST, FcType::Els),
    };
    let fc = FcHeader {
        r_ctl,
        d_id: target.id,
        cs_ctl: 0,
        s_id: peer.id,
        fc_type,
        f_ctl,
        seq_id: 0,
        df_ctl: 0,
        seq_cnt: 0,
        ox_id: 0xF800 + rng.below(2047) as u16,
        rx_id: 0xFFFF,
        parameter: 0,
    };
    let service = match command {
        ElsCommand::Flogi => Some(FipService::Flogi),
        ElsCommand::Logo if rng.below(2) == 0 => Some(FipService::Logo),
        ElsCommand::LsAcc | ElsCommand::LsRjt if rng.below(3) == 0 => Some(FipService::Flogi),
        _ => None,
    };
    let mut bytes = vec![0; 300];
    let length = match service.filter(|_| !is_abort) {
        Some(service) => {
            let carrier = Carrier::Fip(service);
            let out = ElsOut::new(carrier, target.enode_mac, fc, &payload);
            emit_fip(&out, service, peer.enode_mac, &mut bytes)
        }
        None => {
            let destination = MacAddress::vn2vn(target.id);
            let out = ElsOut::new(Carrier::Fcoe, destination, fc, &payload);
            emit_fcoe(&out, &mut bytes)
        }
    };
    bytes.truncate(length.expect("room"));
    bytes
}

/// Returns a random frame in the name of `peer`.
fn forged(rng: &mut Rng, target: Known, peer: Known) -> Vec<u8> {
    match rng.below(3) {
        0 => discovery_frame(rng, target, peer),
        _ => link_service(rng, target, peer),
    }
}

/// The pair of ports at two hosts.
const PAIR: [usize; 2] = [0, 2];

fn logged_in_pair(seed: u64) -> Link {
    let mut link = Link::new(seed);
    link.start(0, 1);
    link.start(2, 3);
    link.run(3 * S);
    assert!(link.is_complete());
    link
}

/// Returns one of the pair, and what is known of it and of the other one.
fn victim(link: &Link, rng: &mut Rng) -> (usize, Known, Known) {
    let to = rng.below(2) as usize;
    (PAIR[to], known(link, PAIR[to]), known(link, PAIR[1 - to]))
}

fn inject(link: &mut Link, at: usize, bytes: &[u8]) {
    let now_ns = link.now_ns;
    link.node_mut(at).port.handle_frame(now_ns, bytes);
}

#[test]
fn forged_frames_do_not_end_the_login_of_a_pair() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = Rng::new(0xF0_46E4 + seed);
        let mut link = logged_in_pair(seed);
        for _ in 0..3_000 {
            let (at, target, peer) = victim(&link, &mut rng);
            inject(&mut link, at, &forged(&mut rng, target, peer));
            link.run(rng.below(20 * MS));
        }
        for at in PAIR {
            let port = &link.node(at).port;
            assert_eq!(counter(port, "logouts"), 0, "{at}");
            assert_eq!(port.state(), Vn2vnState::Up);
            for reached in ["doubts", "vn2vn_doubted", "vn2vn_kept"] {
                assert!(counter(port, reached) > 10, "{reached}");
            }
        }
        assert!(link.is_complete());
        // A restart is found all the same.
        let low = [3, 4][rng.below(2) as usize];
        restart(&mut link, low, None);
    }
}

/// The forger sends frames in the name of each while they find each other and log in. Frames about the own N_Port_ID of
/// the target are excluded: a station that objects to each one keeps it from getting any.
#[test]
fn forged_frames_do_not_prevent_the_login_of_a_pair() {
    let mut longest_ns = 0;
    for seed in 0..20 {
        let mut rng = Rng::new(0xF0_46E5 + seed);
        let mut link = Link::new(seed);
        link.start(0, 1);
        link.start(2, 3);
        while !PAIR.iter().all(|at| link.node(*at).id.is_some()) {
            link.run(MS);
        }
        let start_ns = link.now_ns;
        while !link.is_complete() {
            let (at, target, peer) = victim(&link, &mut rng);
            let bytes = forged(&mut rng, target, peer);
            let is_vn2vn = bytes[12..18] == [0x89, 0x14, 0x10, 0, 0, 5];
            let own = MacAddress::vn2vn(target.id).0;
            if !(is_vn2vn && bytes.windows(6).any(|window| window == own)) {
                inject(&mut link, at, &bytes);
            }
            link.run(rng.below(20 * MS));
            assert!(link.now_ns - start_ns < 30 * S, "seed {seed}");
        }
        longest_ns = longest_ns.max(link.now_ns - start_ns);
    }
    println!("logged in after at most {} ms", longest_ns / MS);
}

/// Returns the time from the restart of the second port until both are logged in again.
fn restart(link: &mut Link, low: u16, preferred: Option<NPortId>) -> u64 {
    let start_ns = link.now_ns;
    link.nodes[2] = None;
    link.start_with(2, low, preferred);
    let before = counter(&link.node(0).port, "logins");
    while !link.is_complete() || counter(&link.node(0).port, "logins") == before {
        link.run(MS);
        assert!(link.now_ns - start_ns < 60 * S);
    }
    link.now_ns - start_ns
}

/// A restart with the same name and N_Port_ID, with another name, and with another N_Port_ID: the wait is that of the
/// discovery, about 1 s, and in the last case four ADISCs to the old N_Port_ID, which no port answers.
#[test]
fn restarted_port_is_logged_in_again_soon() {
    let same = restart(&mut logged_in_pair(31), 3, None);
    let renamed = restart(&mut logged_in_pair(32), 4, NPortId::new(3));
    let moved = restart(&mut logged_in_pair(33), 3, NPortId::new(77));
    let ms = [same, renamed, moved].map(|ns| ns / MS);
    println!("same name and N_Port_ID, other name, other N_Port_ID: {ms:?} ms");
    assert!(ms[0] < 9_500 && ms[1] < 1_500 && ms[2] < 5_500, "{ms:?}");
}

/// Returns a port that does not exist.
fn invented(number: u16) -> Known {
    let [high, low] = number.to_be_bytes();
    Known {
        id: NPortId::from_bytes([0, 0x80 + high, low]),
        port_name: 0x3000_0000_0000_0000 | u64::from(number),
        node_name: 1,
        enode_mac: MacAddress([0x52, 0x55, 0, 0, high, low]),
    }
}

/// A port that joined after the last beacon of another one logs in with it all the same, and keeps the login.
#[test]
fn forged_claims_do_not_evict_a_logged_in_neighbour() {
    let mut link = logged_in_pair(8);
    let message = Vn2vnMessage::ClaimNotification(claim(2158));
    for number in 0..1000 {
        let bytes = vn2vn_frame(invented(number), message, false, MacAddress::ALL_VN2VN, 0);
        inject(&mut link, 2, &bytes);
        link.run(MS);
    }
    assert!(link.is_complete());
    assert_eq!(counter(&link.node(2).port, "logouts"), 0);
    assert!(counter(&link.node(2).port, "vn2vn_gone") > 0);
    // It is removed when it disappears.
    link.nodes[0] = None;
    link.run(21 * S);
    assert!(link.node(2).logins.is_empty());
    assert_eq!(link.node(2).port.neighbours().count(), 0);
}

/// 1000 forged neighbours that send beacons too: a new port is found, and logged in with.
#[test]
fn forged_neighbours_do_not_keep_a_new_port_out() {
    let mut link = logged_in_pair(41);
    let all = MacAddress::ALL_VN2VN;
    for number in 0..1_000 {
        let port = invented(number);
        for at in PAIR {
            let response = Vn2vnMessage::ClaimResponse(claim(2158));
            let enode_mac = link.node(at).enode_mac;
            inject(
                &mut link,
                at,
                &vn2vn_frame(port, response, false, enode_mac, 2158),
            );
            inject(
                &mut link,
                at,
                &vn2vn_frame(port, Vn2vnMessage::Beacon, false, all, 0),
            );
        }
        link.run(MS);
    }
    assert_eq!(link.node(0).port.neighbours().count(), 256);
    link.start(4, 5);
    link.run(3 * S);
    let id = link.node(4).id.expect("up");
    for at in PAIR {
        assert!(link.node(at).logins.contains(&id));
        assert_eq!(counter(&link.node(at).port, "logouts"), 0);
        assert!(counter(&link.node(at).port, "vn2vn_evicted") > 0);
    }
}
