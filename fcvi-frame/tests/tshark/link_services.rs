//! Compares our link services with tshark's dissection, field by field.

use std::path::Path;

use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::els::{
    ACCEPT, Adisc, Class3Parameters, ElsCommand, Farp, FarpAction, FarpMatch, Login, LoginFeatures,
    Logo, LsRjt, PageFlags, ProcessLogin, RejectExplanation, RejectReason, ResponseCode, Rrq,
    ServiceParameterPage,
};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::frame::{FrameHeader, seal};
use fcvi_frame::{MacAddress, profile};
use vi_types::HostAddress;

use super::{tshark_fields, write_pcap};

const PORT_NAME: u64 = 0x2000_5254_0000_0001;
const NODE_NAME: u64 = 0x1000_5254_0000_0001;
const PORT: &str = "20:00:52:54:00:00:00:01";
const NODE: &str = "10:00:52:54:00:00:00:01";

fn frame(fc_type: FcType, r_ctl: RCtl, f_ctl: FCtl, payload: &[u8]) -> Vec<u8> {
    let (a, b) = (
        NPortId::from_bytes([0, 1, 1]),
        NPortId::from_bytes([0, 2, 2]),
    );
    let (s_id, d_id) = if f_ctl.contains(FCtl::EXCHANGE_RESPONDER) {
        (b, a)
    } else {
        (a, b)
    };
    let header = FrameHeader {
        dst: MacAddress::vn2vn(d_id),
        src: MacAddress::vn2vn(s_id),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl,
            d_id,
            cs_ctl: 0,
            s_id,
            fc_type,
            f_ctl,
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id: 0x77,
            rx_id: 0xFFFF,
            parameter: 0,
        },
        device: None,
    };
    let mut bytes = vec![0; header.bytes()];
    header.emit(&mut bytes).expect("a buffer of its length");
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + 8, 0);
    let frame_bytes = bytes.len();
    seal(&mut bytes, frame_bytes, Eof::T).expect("a legal length");
    bytes
}

fn request(payload: &[u8]) -> Vec<u8> {
    frame(
        FcType::Els,
        RCtl::ElsRequest,
        profile::F_CTL_REQUEST,
        payload,
    )
}

fn reply(payload: &[u8]) -> Vec<u8> {
    frame(
        FcType::Els,
        RCtl::ElsReply,
        profile::F_CTL_FINAL_REPLY,
        payload,
    )
}

fn check(name: &str, frames: &[Vec<u8>], fields: &[&str], expected: &[String]) {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fcvi_frame_tshark_{name}.pcap"));
    write_pcap(&path, frames);
    assert_eq!(tshark_fields(&path, fields), expected);
}

fn adisc() -> Adisc {
    Adisc {
        hard_address: NPortId::from_bytes([0x0A, 0x0B, 0x0C]),
        port_name: PORT_NAME,
        node_name: NODE_NAME,
        n_port_id: NPortId::from_bytes([0, 1, 1]),
    }
}

#[test]
fn adisc_and_logo() {
    let adisc = adisc();
    let mut discover = [0; Adisc::BYTES];
    adisc.emit_request(&mut discover);
    let mut accept = [0; Adisc::BYTES];
    adisc.emit_accept(&mut accept);
    let mut logo = [0; Logo::BYTES];
    Logo {
        n_port_id: adisc.n_port_id,
        port_name: adisc.port_name,
    }
    .emit(&mut logo);
    let frames = [request(&discover), reply(&accept), request(&logo)];
    let fields = [
        "fcels.opcode",
        "fcels.hrdaddr",
        "fcels.npname",
        "fcels.fnname",
        "fcels.portid",
        "_ws.malformed",
    ];
    let expected = [
        format!("0x52\t0a.0b.0c\t{PORT}\t{NODE}\t00.01.01\t"),
        format!("0x02\t0a.0b.0c\t{PORT}\t{NODE}\t00.01.01\t"),
        format!("0x05\t\t{PORT}\t\t00.01.01\t"),
    ];
    check("adisc", &frames, &fields, &expected);
}

#[test]
fn every_reject() {
    let reasons = (0..=u8::MAX).map(RejectReason::from_raw);
    let reasons = reasons.filter(|reason| !matches!(reason, RejectReason::Unknown(_)));
    let explanations = (0..=u8::MAX).map(RejectExplanation::from_raw);
    let explanations = explanations.filter(|e| !matches!(e, RejectExplanation::Unknown(_)));
    let explanations: Vec<_> = explanations.collect();
    let (mut frames, mut expected) = (Vec::new(), Vec::new());
    for reason in reasons {
        for &explanation in &explanations {
            let mut bytes = [0; LsRjt::BYTES];
            LsRjt {
                reason,
                explanation,
            }
            .emit(&mut bytes);
            frames.push(reply(&bytes));
            let (reason, explanation) = (reason.raw(), explanation.raw());
            expected.push(format!("0x01\t{reason:#04x}\t{explanation:#04x}\t"));
        }
    }
    let fields = [
        "fcels.opcode",
        "fcels.rjt.reason",
        "fcels.rjt.detail",
        "_ws.malformed",
    ];
    check("reject", &frames, &fields, &expected);
}

#[test]
fn logins() {
    let login = Login {
        credit: 10,
        features: LoginFeatures::CONTINUOUS_OFFSET,
        receive_bytes: 1452,
        total_sequences: 255,
        relative_offset: 0x1F,
        e_d_tov: 2000,
        port_name: PORT_NAME,
        node_name: NODE_NAME,
        class3: Class3Parameters {
            service: Class3Parameters::VALID | Class3Parameters::SEQUENTIAL,
            receive_bytes: 1024,
            concurrent_sequences: 17,
            open_sequences: 3,
        },
    };
    let bytes = |command| {
        let mut bytes = [0; Login::BYTES];
        login.emit(command, &mut bytes);
        bytes
    };
    let frames = [
        request(&bytes(ElsCommand::Plogi)),
        reply(&bytes(ElsCommand::LsAcc)),
        request(&bytes(ElsCommand::Flogi)),
    ];
    let fields = [
        "fcels.opcode",
        "fcels.logi.b2b",
        "fcels.cmn.cios",
        "fcels.logi.rcvsize",
        "fcels.logi.maxconseq",
        "fcels.logi.reloff",
        "fcels.edtov",
        "fcels.npname",
        "fcels.fnname",
        "fcels.logi.clsrcvsize",
        "fcels.logi.totconseq",
        "fcels.logi.openseq",
        "_ws.malformed",
    ];
    // tshark shows the first three classes; class 3 is the last of them.
    let expected = ["0x03", "0x02", "0x04"].map(|opcode| {
        format!("{opcode}\t10\t1\t1452\t255\t31\t2000\t{PORT}\t{NODE}\t1024\t17\t3\t")
    });
    check("logins", &frames, &fields, &expected);
}

#[test]
fn process_logins() {
    let page = ServiceParameterPage {
        flags: PageFlags::IMAGE_PAIR,
        ..ServiceParameterPage::new(FcType::Vi)
    };
    let executed = ServiceParameterPage {
        response: ResponseCode::Executed,
        ..page
    };
    let bytes = |command, page| {
        let mut bytes = [0; 116];
        let len = ProcessLogin::emit(command, std::iter::once(page), &mut bytes);
        bytes[..len].to_vec()
    };
    let frames = [
        request(&bytes(ElsCommand::Prli, page)),
        reply(&bytes(ElsCommand::LsAcc, executed)),
        request(&bytes(
            ElsCommand::Prlo,
            ServiceParameterPage::new(FcType::Vi),
        )),
    ];
    // tshark's response code is the whole byte.
    let fields = [
        "fcels.opcode",
        "fcels.prlilo.page_length",
        "fcels.prlilo.payload_length",
        "fcels.prlilo.type",
        "fcels.prlilo.response_code",
        "fcels.prliloflags.ipe",
        "_ws.malformed",
    ];
    let expected = [
        "0x20\t16\t20\t88\t\t1\t".to_owned(),
        "0x02\t16\t20\t88\t0x21\t1\t".to_owned(),
        "0x21\t16\t20\t88\t\t\t".to_owned(),
    ];
    check("process", &frames, &fields, &expected);
}

#[test]
fn farp() {
    let farp = Farp {
        match_code: FarpMatch::HOST,
        action: FarpAction::REPLY,
        requester: NPortId::from_bytes([0, 1, 1]),
        responder: NPortId::from_bytes([0, 2, 2]),
        requester_port_name: PORT_NAME,
        requester_node_name: NODE_NAME,
        responder_port_name: PORT_NAME + 1,
        responder_node_name: NODE_NAME + 1,
        requester_host: HostAddress::from_ipv4([10, 0, 0, 1]),
        responder_host: HostAddress([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
    };
    let frames = [ElsCommand::FarpRequest, ElsCommand::FarpReply].map(|command| {
        let mut bytes = [0; Farp::BYTES];
        farp.emit(command, &mut bytes);
        request(&bytes)
    });
    let fields = [
        "fcels.opcode",
        "fcels.matchcp",
        "fcels.portid",
        "fcels.respaction",
        "fcels.resportid",
        "fcels.npname",
        "fcels.fnname",
        "fcels.respname",
        "fcels.respnname",
        "fcels.reqipaddr",
        "fcels.respipaddr",
        "_ws.malformed",
    ];
    let expected = ["0x54", "0x55"].map(|opcode| {
        format!(
            "{opcode}\t4\t00.01.01\t0x02\t00.02.02\t{PORT}\t{NODE}\t\
             20:00:52:54:00:00:00:02\t10:00:52:54:00:00:00:02\t::10.0.0.1\tfd00::2\t"
        )
    });
    check("farp", &frames, &fields, &expected);
}

#[test]
fn rrq_and_accept_without_parameters() {
    let mut rrq = [0; Rrq::BYTES];
    Rrq {
        s_id: NPortId::from_bytes([0, 1, 1]),
        ox_id: 0x1234,
        rx_id: 0x5678,
    }
    .emit(&mut rrq);
    let frames = [request(&rrq), reply(&ACCEPT)];
    let fields = ["fcels.opcode", "fcels.oxid", "fcels.rxid", "_ws.malformed"];
    let expected = ["0x12\t0x1234\t0x5678\t", "0x02\t\t\t"].map(str::to_owned);
    check("rrq", &frames, &fields, &expected);
}

#[test]
fn abort_and_its_responses() {
    let accept = BaAcc {
        last_seq_id: Some(0x21),
        ox_id: 0x77,
        rx_id: 0x1234,
        low_seq_cnt: 3,
        high_seq_cnt: 0xFFFF,
    };
    let mut accept_bytes = [0; BaAcc::BYTES];
    accept.emit(&mut accept_bytes);
    let mut reject = [0; BaRjt::BYTES];
    BaRjt {
        reason: BaRjt::LOGICAL_ERROR,
        explanation: BaRjt::INVALID_EXCHANGE,
    }
    .emit(&mut reject);
    let (request, reply) = (FCtl::END_SEQUENCE, profile::F_CTL_FINAL_REPLY);
    let frames = [
        frame(FcType::Bls, RCtl::Abts, request, &[]),
        frame(FcType::Bls, RCtl::BaAcc, reply, &accept_bytes),
        frame(FcType::Bls, RCtl::BaRjt, reply, &reject),
    ];
    let fields = [
        "fc.r_ctl",
        "fc.bls_seqidvld",
        "fc.bls_lastseqid",
        "fc.bls_oxid",
        "fc.bls_rxid",
        "fc.bls_lseqcnt",
        "fc.bls_hseqcnt",
        "fc.bls_reason",
        "fc.bls_rjtdetail",
        "_ws.malformed",
    ];
    let expected = [
        "0x81\t\t\t\t\t\t\t\t\t",
        "0x84\t0x80\t0x21\t0x0077\t0x1234\t0x0003\t0xffff\t\t\t",
        "0x85\t\t\t\t\t\t\t0x03\t0x03\t",
    ];
    check("abort", &frames, &fields, &expected.map(str::to_owned));
}
