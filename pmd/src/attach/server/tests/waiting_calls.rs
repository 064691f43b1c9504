//! Tests of an application with many calls that wait at the same time.

use std::thread;

use super::*;

const CALLS: usize = 40;

/// More calls end at once than one poll wakes, while the core sleeps.
#[test]
fn all_waiting_calls_end_with_their_program_or_with_their_nic_handle() {
    let server = server("many-waiting");
    let (attach_socket, key) = attach(&server);
    let device = server.nics[0].device;
    let (first, nic) = open(&server, key);
    let (other, kept_nic) = open(&server, key);
    let wait_on = |nic, number: usize| {
        let call = send_join(&server, key);
        assert!(matches!(reply(&call), Reply::Done));
        let local = NetAddress {
            host: HostAddress(device.host),
            discriminator: Discriminator::new(format!("waiting {number}").as_bytes()).unwrap(),
        };
        let limit = None;
        call.send(&Request::ConnectWait { nic, local, limit }, &[])
            .unwrap();
        call
    };
    let calls: Vec<_> = (0..CALLS).map(|number| wait_on(nic, number)).collect();
    let kept = wait_on(kept_nic, CALLS);
    let session = server.sessions().values().next().cloned().unwrap();
    let in_progress = || session.status().waiting as usize;
    wait_until("not all calls wait", || in_progress() == CALLS + 1);
    first.send(&Request::Close { nic }, &[]).unwrap();
    assert!(matches!(reply(&first), Reply::Done));
    for call in &calls {
        assert!(matches!(reply(call), Reply::Failed(_)));
    }
    wait_until("the other handle's call ended", || in_progress() == 1);
    let ended = thread::spawn(move || kept.receive::<Reply>());
    drop(attach_socket);
    wait_until_unused(&server);
    assert!(!matches!(
        ended.join().unwrap(),
        Ok(Some((Reply::Request { .. }, _)))
    ));
    wait_until("calls are still in progress", || {
        session.calls.load(Ordering::Relaxed) == 0
    });
    drop((calls, first, other));
    server.stop();
}
