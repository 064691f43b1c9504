use super::super::tests::{reply, server};
use super::*;

fn parameters(device: &str) -> CaptureParameters {
    CaptureParameters {
        device: device.to_owned(),
        n_port_id: None,
        snaplen_bytes: 0,
        buffer_bytes: 1 << 20,
        max_frames: 1,
    }
}

/// Permission to attach is not sufficient.
#[test]
fn only_root_and_the_user_of_the_process_may_capture() {
    let server = server("captures");
    let own = geteuid().as_raw();
    let parameters = parameters("no such NIC");
    for uid in [0, own, own + 1, 65534, u32::MAX] {
        let (process, operator) = Socket::pair().unwrap();
        let peer = Peer {
            pid: 1,
            uid,
            gid: own,
        };
        server
            .capture(&Arc::new(process), peer, &parameters)
            .unwrap();
        match reply(&operator) {
            Reply::UnknownNic(_) => assert!(uid == 0 || uid == own, "{uid} was permitted"),
            Reply::Refused(why) => {
                assert!(uid != 0 && uid != own, "{uid} was refused");
                let expected = format!("user {uid}: only root and the user of fcvi-pmd may");
                assert!(why.starts_with(&expected), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    server.stop();
}

/// Its thread may not have run since.
#[test]
fn capture_whose_operator_has_ended_does_not_prevent_another() {
    let server = server("successive");
    let parameters = parameters("VINIC0");
    let served = server.nic("VINIC0").unwrap();
    let [(first, first_operator), (second, _second_operator)] = [(); 2].map(|()| {
        let (process, operator) = Socket::pair().unwrap();
        (Arc::new(process), operator)
    });
    let install = |process| install_tap(served, process, &parameters).map(|(tap, _)| tap);
    let ended = install(&first).unwrap();
    let why = install(&second).map(drop).unwrap_err();
    assert!(why.contains("another capture is running"), "{why}");
    drop(first_operator);
    let running = install(&second).unwrap();
    assert!(ended.reader.is_closed(), "no frames are added");
    drop(ended);
    assert!(!running.reader.is_closed(), "it is another's");
    drop(running);
    server.stop();
}
