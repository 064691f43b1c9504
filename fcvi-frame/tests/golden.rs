//! Golden frames are parsed to the expected values, and emitted from them.

mod common;
#[path = "golden/linux.rs"]
mod linux;

use std::collections::BTreeSet;

use common::golden_frames;
use fcvi_frame::connect::{Attributes, ConnectRequest, ConnectResponse};
use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::error::{Field, ParseError, Reason};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::flags::{
    connect_response, disconnect, message_request, message_response, reliability_flags,
};
use fcvi_frame::frame::{FrameHeader, FrameView, seal};
use fcvi_frame::gaps::{self, MissingRange};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, MessageReason, connect_parameter};
use fcvi_frame::{MacAddress, profile};
use vi_types::{Discriminator, HostAddress, NetAddress, ReliabilityLevel};

const A: NPortId = NPortId::from_bytes([0, 1, 1]);
const B: NPortId = NPortId::from_bytes([0, 2, 2]);
const HANDLE_A: u32 = 0x9C4E_0007;
const HANDLE_B: u32 = 0x3D1B_0002;
const MSG_ID: u32 = 0x0102_0304;
const CONNECTION_ID: u32 = 0xC0FF_EE01;

/// The expected values of a golden frame.
struct Expected {
    name: &'static str,
    header: FrameHeader,
    eof: Eof,
    payload: Vec<u8>,
}

/// Expected values of an FC-VI frame: exchange fields as (SEQ_ID, SEQ_CNT, OX_ID, RX_ID).
fn fcvi(
    name: &'static str,
    f_ctl: FCtl,
    (seq_id, seq_cnt, ox_id, rx_id): (u8, u16, u16, u16),
    device: DeviceHeader,
    payload: &[u8],
) -> Expected {
    let from_a = !f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
    let (s_id, d_id) = if from_a { (A, B) } else { (B, A) };
    let header = FrameHeader {
        dst: MacAddress::vn2vn(d_id),
        src: MacAddress::vn2vn(s_id),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl: device.opcode.r_ctl(),
            d_id,
            cs_ctl: 0,
            s_id,
            fc_type: FcType::Vi,
            f_ctl,
            seq_id,
            df_ctl: profile::df_ctl(device.opcode.header_bytes()),
            seq_cnt,
            ox_id,
            rx_id,
            parameter: 0,
        },
        device: Some(device),
    };
    Expected {
        name,
        header,
        eof: Eof::T,
        payload: payload.to_vec(),
    }
}

fn device(opcode: Opcode, handle: u32, flags: u8, msg_id: u32, parameter: u32) -> DeviceHeader {
    DeviceHeader {
        handle,
        opcode,
        flags,
        msg_id,
        parameter,
        rmt_va: 0,
        rmt_va_handle: 0,
        tot_len: 0,
    }
}

fn connection(opcode: Opcode, handle: u32, flags: u8, msg_id: u32, parameter: u32) -> DeviceHeader {
    DeviceHeader {
        tot_len: CONNECTION_ID,
        ..device(opcode, handle, flags, msg_id, parameter)
    }
}

fn net_address(last: u8, discriminator: &[u8]) -> NetAddress {
    NetAddress {
        host: HostAddress::from_ipv4([10, 0, 0, last]),
        discriminator: Discriminator::new(discriminator).unwrap(),
    }
}

fn connect_request() -> ConnectRequest {
    ConnectRequest {
        vi_handle: HANDLE_A,
        timeout_ms: 30_000,
        local: net_address(1, b"client"),
        remote: net_address(2, b"echo server 0001"),
        attributes: Attributes {
            reliability: ReliabilityLevel::ReliableDelivery,
            rdma_write: true,
            in_order: true,
            max_transfer_bytes: 65_536,
            receive_data_field_bytes: 2112,
            ..Attributes::default()
        },
    }
}

fn connect_response() -> ConnectResponse {
    ConnectResponse {
        vi_handle: HANDLE_B,
        responder: net_address(2, b"echo server 0001"),
        attributes: Attributes {
            reliability: ReliabilityLevel::ReliableDelivery,
            rdma_write: true,
            rdma_read: true,
            in_order: true,
            recovery: true,
            max_transfer_bytes: 65_536,
            max_reads: 4,
            receive_data_field_bytes: 1452,
            ..Attributes::default()
        },
    }
}

fn message_ius() -> Vec<Expected> {
    let mut all = send_ius();
    all.extend(write_and_read_ius());
    all
}

fn send_ius() -> Vec<Expected> {
    let offset = FCtl::RELATIVE_OFFSET;
    let reliable = reliability_flags(ReliabilityLevel::ReliableDelivery);
    let mut further = fcvi(
        "fcvi_send_rqst_further",
        profile::F_CTL_ONE_WAY.union(offset),
        (1, 1, 0x1001, 0xFFFF),
        device(Opcode::SendRequest, HANDLE_B, reliable, MSG_ID + 1, 0),
        &(0..24).collect::<Vec<u8>>(),
    );
    further.header.sof = Sof::N3;
    further.header.fc.parameter = 1436;
    further.eof = Eof::N;
    vec![
        fcvi(
            "fcvi_send_rqst",
            profile::F_CTL_ONE_WAY_LAST.union(offset).with_fill(3),
            (1, 0, 0x1001, 0xFFFF),
            device(
                Opcode::SendRequest,
                HANDLE_B,
                message_request::IMMEDIATE | reliable,
                MSG_ID,
                0xCAFE_F00D,
            ),
            b"hello",
        ),
        further,
        fcvi(
            "fcvi_send_resp",
            profile::F_CTL_FINAL_REPLY,
            (2, 0, 0x1002, 0x2001),
            device(
                Opcode::SendResponse,
                HANDLE_A,
                message_response::ERROR,
                MSG_ID,
                MessageReason::NoDescriptor.to_parameter(),
            ),
            &[],
        ),
        gap_report(),
    ]
}

/// A gap report: the message after MSG_ID is received up to 2872, and three ranges are missing.
fn gap_report() -> Expected {
    let range = |ahead: u32, offset_bytes, length_bytes| MissingRange {
        msg_id: MSG_ID + ahead,
        offset_bytes,
        length_bytes,
    };
    let mut payload = [0; 36];
    let ranges = [range(1, 2872, 1436), range(1, 8616, 0), range(3, 0, 2872)];
    assert_eq!(gaps::emit(&ranges, &mut payload), 36);
    let mut report = fcvi(
        "fcvi_send_resp_gaps",
        profile::F_CTL_FINAL_REPLY.union(FCtl::RELATIVE_OFFSET),
        (2, 7, 0x1007, 0x1007),
        device(
            Opcode::SendResponse,
            HANDLE_A,
            message_response::CUMULATIVE,
            MSG_ID,
            MessageReason::Gaps.to_parameter(),
        ),
        &payload,
    );
    report.header.fc.parameter = 2872;
    report
}

fn write_and_read_ius() -> Vec<Expected> {
    let offset = FCtl::RELATIVE_OFFSET;
    let reliable = reliability_flags(ReliabilityLevel::ReliableDelivery);
    let mut read_response = fcvi(
        "fcvi_read_resp",
        profile::F_CTL_FINAL_REPLY.union(offset).with_fill(2),
        (6, 2, 0x1004, 0x2003),
        device(
            Opcode::ReadResponse,
            HANDLE_A,
            message_response::LAST,
            MSG_ID + 3,
            0,
        ),
        &[0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0xA5],
    );
    read_response.header.sof = Sof::N3;
    read_response.header.fc.parameter = 4090;
    vec![
        fcvi(
            "fcvi_write_rqst",
            profile::F_CTL_REQUEST.union(offset),
            (3, 0xFF, 0x1003, 0xFFFF),
            DeviceHeader {
                rmt_va: 0x7F00_1234_5678,
                rmt_va_handle: 0xAABB_CCDD,
                tot_len: 8,
                ..device(
                    Opcode::WriteRequest,
                    HANDLE_B,
                    message_request::RESPONSE_REQUESTED
                        | reliability_flags(ReliabilityLevel::ReliableReception)
                        | message_request::FENCE,
                    MSG_ID + 2,
                    0,
                )
            },
            &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
        ),
        fcvi(
            "fcvi_write_resp",
            profile::F_CTL_FINAL_REPLY,
            (4, 0, 0x1003, 0x2002),
            device(
                Opcode::WriteResponse,
                HANDLE_A,
                message_response::CUMULATIVE,
                MSG_ID + 2,
                MessageReason::None.to_parameter(),
            ),
            &[],
        ),
        fcvi(
            "fcvi_read_rqst",
            profile::F_CTL_REQUEST,
            (5, 0, 0x1004, 0xFFFF),
            DeviceHeader {
                rmt_va: 0x7F00_1234_0000,
                rmt_va_handle: 0xAABB_CCDD,
                tot_len: 4096,
                ..device(
                    Opcode::ReadRequest,
                    HANDLE_B,
                    message_request::RESPONSE_REQUESTED | reliable,
                    MSG_ID + 3,
                    0,
                )
            },
            &[],
        ),
        read_response,
        fcvi(
            "fcvi_rendezvous_rqst",
            profile::F_CTL_REQUEST,
            (5, 0, 0x1004, 0xFFFF),
            DeviceHeader {
                rmt_va: 0x7F00_1234_0000,
                rmt_va_handle: 0xAABB_CCDD,
                tot_len: 65_536,
                ..device(
                    Opcode::RendezvousRequest,
                    HANDLE_B,
                    message_request::RESPONSE_REQUESTED | reliable,
                    MSG_ID + 4,
                    0,
                )
            },
            &[],
        ),
    ]
}

fn connection_ius() -> Vec<Expected> {
    let mut request = [0; ConnectRequest::BYTES];
    connect_request().emit(&mut request);
    let mut response = [0; ConnectResponse::BYTES];
    connect_response().emit(&mut response);
    let accepted = connect_parameter::pack(ConnectStatus::Continue, ConnectReason::Accepted);
    vec![
        fcvi(
            "fcvi_connect_rqst",
            profile::F_CTL_REQUEST,
            (7, 0, 0x1005, 0xFFFF),
            connection(
                Opcode::ConnectRequest,
                profile::HANDLE_NONE,
                0,
                0x1111_1111,
                0,
            ),
            &request,
        ),
        fcvi(
            "fcvi_connect_resp1",
            profile::F_CTL_CONNECT_RESPONSE1,
            (8, 0, 0x1005, 0x2004),
            connection(Opcode::ConnectResponse1, HANDLE_A, 0, 0x2222_2222, accepted),
            &response,
        ),
        fcvi(
            "fcvi_connect_resp2",
            profile::F_CTL_CONNECT_RESPONSE2,
            (9, 1, 0x1005, 0x2004),
            connection(
                Opcode::ConnectResponse2,
                HANDLE_B,
                connect_response::RETRY,
                0,
                accepted,
            ),
            &[],
        ),
        fcvi(
            "fcvi_connect_resp3",
            profile::F_CTL_FINAL_REPLY,
            (10, 1, 0x1005, 0x2004),
            connection(Opcode::ConnectResponse3, HANDLE_A, 0, 0, accepted),
            &[],
        ),
        fcvi(
            "fcvi_disconnect_rqst",
            profile::F_CTL_REQUEST,
            (11, 0, 0x1006, 0xFFFF),
            connection(
                Opcode::DisconnectRequest,
                HANDLE_B,
                disconnect::REPLY_EXPECTED,
                0,
                MessageReason::Disconnected.to_parameter(),
            ),
            &[],
        ),
        fcvi(
            "fcvi_disconnect_resp",
            profile::F_CTL_FINAL_REPLY,
            (12, 0, 0x1006, 0x2005),
            connection(Opcode::DisconnectResponse, HANDLE_A, 0, 0, 0),
            &[],
        ),
    ]
}

fn crc_vector() -> Expected {
    let unused = device(Opcode::SendRequest, 0, 0, 0, 0);
    let mut vector = fcvi(
        "crc_vector",
        profile::F_CTL_REQUEST,
        (1, 0, 0x1001, 0xFFFF),
        unused,
        &[0; 16],
    );
    vector.header.fc.r_ctl = RCtl::UnsolicitedControl;
    vector.header.device = None;
    vector
}

fn all_expected() -> Vec<Expected> {
    let mut all = message_ius();
    all.extend(connection_ius());
    all.extend(linux::frames());
    all.push(crc_vector());
    all
}

fn golden(name: &str) -> Vec<u8> {
    golden_frames(".")
        .into_iter()
        .find_map(|(found, bytes)| (found == name).then_some(bytes))
        .unwrap_or_else(|| panic!("no golden frame {name}"))
}

#[test]
fn every_file_and_every_opcode_is_expected() {
    let files: BTreeSet<String> = golden_frames(".")
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let expected: BTreeSet<String> = all_expected().iter().map(|e| e.name.to_string()).collect();
    assert_eq!(files, expected);
    let opcodes = all_expected().into_iter().filter_map(|e| e.header.device);
    let opcodes: BTreeSet<u8> = opcodes.map(|device| device.opcode.raw()).collect();
    assert_eq!(opcodes.len(), Opcode::ALL.len());
}

#[test]
fn golden_frames_are_parsed_to_the_expected_values() {
    for expected in all_expected() {
        let name = expected.name;
        let bytes = golden(name);
        let view = FrameView::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let header = expected.header;
        assert_eq!(
            (view.ethernet.dst, view.ethernet.src),
            (header.dst, header.src),
            "{name}"
        );
        assert_eq!(view.ethernet.vlan_tci, None, "{name}");
        assert_eq!((view.sof, view.eof), (header.sof, expected.eof), "{name}");
        assert_eq!(view.fc, header.fc, "{name}");
        match header.device {
            Some(device) => {
                let iu = view.iu().unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(iu.header, device, "{name}");
                assert_eq!(iu.payload, expected.payload, "{name}");
            }
            None => {
                assert_eq!(view.data_field(), expected.payload, "{name}");
                assert!(view.iu().is_err(), "{name}");
            }
        }
    }
}

#[test]
fn golden_frames_are_emitted_from_the_expected_values() {
    for Expected {
        name,
        header,
        eof,
        payload,
    } in all_expected()
    {
        let mut bytes = vec![0; header.bytes()];
        header.emit(&mut bytes).unwrap();
        bytes.extend_from_slice(&payload);
        bytes.resize(bytes.len().next_multiple_of(4) + 8, 0);
        let frame_bytes = bytes.len();
        seal(&mut bytes, frame_bytes, eof).unwrap();
        assert_eq!(bytes, golden(name), "{name}");
    }
}

#[test]
fn golden_payloads_are_parsed() {
    let bytes = golden("fcvi_connect_rqst");
    let payload = FrameView::parse(&bytes).unwrap().iu().unwrap().payload;
    assert_eq!(ConnectRequest::parse(payload), Ok(connect_request()));
    let bytes = golden("fcvi_connect_resp1");
    let payload = FrameView::parse(&bytes).unwrap().iu().unwrap().payload;
    assert_eq!(ConnectResponse::parse(payload), Ok(connect_response()));
}

#[test]
fn the_crc_vector_has_the_known_crc_and_no_iu() {
    let bytes = golden("crc_vector");
    assert_eq!(fcvi_frame::crc::fc_crc(&bytes[28..68]), 0x34F2_E157);
    let error = FrameView::parse(&bytes).unwrap().iu().unwrap_err();
    let unknown = ParseError {
        field: Field::Opcode,
        reason: Reason::Unknown,
    };
    assert_eq!(error, unknown);
}
