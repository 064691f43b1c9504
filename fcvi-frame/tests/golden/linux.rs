//! Expected values of the frames of two Linux 6.1 kernels.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{
    Adisc, Class3Parameters, ElsCommand, Login, LoginFeatures, PageFlags, ProcessLogin,
    READ_TIMEOUT_VALUES, ResponseCode, RtvAccept, ServiceParameterPage,
};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::frame::{FrameHeader, FrameView};

use super::{Expected, golden};

/// Expected values of a Linux kernel's frame.
fn linux(name: &'static str, r_ctl: RCtl, fc_type: FcType, f_ctl: u32, payload: &[u8]) -> Expected {
    let one = NPortId::from_bytes([0, 0, 1]);
    let two = NPortId::from_bytes([0, 0, 2]);
    let from_two = matches!(name, "linux_adisc" | "linux_plogi");
    let (s_id, d_id) = if from_two { (two, one) } else { (one, two) };
    Expected {
        name,
        header: FrameHeader {
            dst: MacAddress::vn2vn(d_id),
            src: MacAddress::vn2vn(s_id),
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl,
                d_id,
                cs_ctl: 0,
                s_id,
                fc_type,
                f_ctl: FCtl(f_ctl),
                seq_id: 0,
                df_ctl: 0,
                seq_cnt: 0,
                ox_id: 0,
                rx_id: 0xFFFF,
                parameter: 0,
            },
            device: None,
        },
        eof: Eof::T,
        payload: payload.to_vec(),
    }
}

fn linux_adisc() -> Adisc {
    Adisc {
        hard_address: NPortId::default(),
        port_name: 0x2000_5254_0000_0002,
        node_name: 0x1000_5254_0000_0002,
        n_port_id: NPortId::from_bytes([0, 0, 2]),
    }
}

fn linux_adisc_accept() -> Adisc {
    Adisc {
        hard_address: NPortId::default(),
        port_name: 0x2000_5254_0000_0001,
        node_name: 0x1000_5254_0000_0001,
        n_port_id: NPortId::from_bytes([0, 0, 1]),
    }
}

fn login(number: u64) -> Login {
    Login {
        credit: 10,
        features: LoginFeatures::CONTINUOUS_OFFSET,
        receive_bytes: 2112,
        total_sequences: 255,
        relative_offset: 0x1F,
        e_d_tov: 2000,
        port_name: 0x2000_5254_0000_0000 + number,
        node_name: 0x1000_5254_0000_0000 + number,
        class3: Class3Parameters {
            service: Class3Parameters::VALID | Class3Parameters::SEQUENTIAL,
            receive_bytes: 2112,
            concurrent_sequences: 255,
            open_sequences: 1,
        },
    }
}

fn fcp_page(response: ResponseCode) -> ServiceParameterPage {
    ServiceParameterPage {
        flags: PageFlags::IMAGE_PAIR,
        response,
        parameters: 0xB2,
        ..ServiceParameterPage::new(FcType::Fcp)
    }
}

const RTV: RtvAccept = RtvAccept {
    r_a_tov_ms: 4000,
    e_d_tov: 2000,
    qualifier: 0,
};

/// PLOGI, PRLI, RTV and their accepts.
fn login_frames() -> Vec<Expected> {
    let els = FcType::Els;
    let request = |name, payload: &[u8]| linux(name, RCtl::ElsRequest, els, 0x29_0000, payload);
    let reply = |name, payload: &[u8]| linux(name, RCtl::ElsReply, els, 0x99_0000, payload);
    let mut plogi = [0; Login::BYTES];
    login(2).emit(ElsCommand::Plogi, &mut plogi);
    let mut plogi_accept = [0; Login::BYTES];
    login(1).emit(ElsCommand::LsAcc, &mut plogi_accept);
    let process = |command, response| {
        let mut bytes = [0; Login::BYTES];
        let page = std::iter::once(fcp_page(response));
        let len = ProcessLogin::emit(command, page, &mut bytes);
        bytes[..len].to_vec()
    };
    let mut rtv_accept = [0; RtvAccept::BYTES];
    RTV.emit(&mut rtv_accept);
    vec![
        request("linux_plogi", &plogi),
        reply("linux_plogi_acc", &plogi_accept),
        request("linux_prli", &process(ElsCommand::Prli, ResponseCode::None)),
        reply(
            "linux_prli_acc",
            &process(ElsCommand::LsAcc, ResponseCode::Executed),
        ),
        request("linux_rtv", &READ_TIMEOUT_VALUES),
        reply("linux_rtv_acc", &rtv_accept),
    ]
}

/// Returns the expected values of all frames.
pub(crate) fn frames() -> Vec<Expected> {
    let mut request = [0; Adisc::BYTES];
    linux_adisc().emit_request(&mut request);
    let mut accept = [0; Adisc::BYTES];
    linux_adisc_accept().emit_accept(&mut accept);
    let mut disk = b"HELLO FROM LIO\n".to_vec();
    disk.resize(4096, 0);
    let (data, fcp) = (RCtl::SolicitedData, FcType::Fcp);
    let mut first = linux("linux_fcp_data_first", data, fcp, 0x80_0008, &disk[..2112]);
    first.eof = Eof::N;
    let mut last = linux("linux_fcp_data_last", data, fcp, 0x88_0008, &disk[2112..]);
    last.header.sof = Sof::N3;
    last.header.fc.seq_cnt = 1;
    last.header.fc.parameter = 2112;
    for frame in [&mut first, &mut last] {
        frame.header.fc.seq_id = 1;
        frame.header.fc.rx_id = 0;
    }
    let els = FcType::Els;
    let mut all = login_frames();
    all.extend([
        linux("linux_adisc", RCtl::ElsRequest, els, 0x29_0000, &request),
        linux("linux_adisc_acc", RCtl::ElsReply, els, 0x99_0000, &accept),
        first,
        last,
    ]);
    all
}

#[test]
fn linux_payloads_are_parsed() {
    let payload = |name| {
        let bytes = golden(name);
        FrameView::parse(&bytes).unwrap().data_field().to_vec()
    };
    assert_eq!(
        Adisc::parse_request(&payload("linux_adisc")),
        Ok(linux_adisc())
    );
    assert_eq!(
        Adisc::parse_accept(&payload("linux_adisc_acc")),
        Ok(linux_adisc_accept())
    );
    assert_eq!(
        Login::parse(ElsCommand::Plogi, &payload("linux_plogi")),
        Ok(login(2))
    );
    assert_eq!(
        Login::parse(ElsCommand::LsAcc, &payload("linux_plogi_acc")),
        Ok(login(1))
    );
    for (name, command, response) in [
        ("linux_prli", ElsCommand::Prli, ResponseCode::None),
        ("linux_prli_acc", ElsCommand::LsAcc, ResponseCode::Executed),
    ] {
        let bytes = payload(name);
        let read = ProcessLogin::parse(command, &bytes).unwrap();
        assert!(read.pages().eq([fcp_page(response)]), "{name}");
    }
    assert_eq!(RtvAccept::parse(&payload("linux_rtv_acc")), Ok(RTV));
}
