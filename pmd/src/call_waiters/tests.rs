use super::*;

const VI: Object = Object::Connection(ViIndex(3));
const NIC: Object = Object::NicHandle(7);

fn is_woken(call: &WaitingCall) -> bool {
    call.is_woken.load(Ordering::Relaxed) != 0
}

fn woken(calls: &[Arc<WaitingCall>]) -> usize {
    calls.iter().filter(|call| is_woken(call)).count()
}

#[test]
fn event_wakes_only_calls_that_wait_for_its_object() {
    let mut waiters = CallWaiters::default();
    let other_vis = (100..200).map(|vi| waiters.add(&[Object::Connection(ViIndex(vi)), NIC]));
    let others: Vec<_> = other_vis.collect();
    let listener = waiters.add(&[Object::Listener(3), NIC]);
    let call = waiters.add(&[VI]);
    waiters.notify(VI);
    assert!(!waiters.wake_due(), "all are woken");
    assert!(is_woken(&call) && !is_woken(&listener));
    assert_eq!(woken(&others), 0);
    waiters.notify(NIC);
    while waiters.wake_due() {}
    assert!(is_woken(&listener));
    assert_eq!(woken(&others), others.len());
}

#[test]
fn one_poll_wakes_limited_calls_and_later_ones_the_rest_in_order() {
    let mut waiters = CallWaiters::default();
    let calls: Vec<_> = (0..100).map(|_| waiters.add(&[VI, NIC])).collect();
    waiters.notify(VI);
    waiters.notify(NIC);
    for polls in 1..=100_usize.div_ceil(WAKES_PER_POLL) {
        let expected = (polls * WAKES_PER_POLL).min(100);
        assert_eq!(waiters.wake_due(), expected < 100, "{polls} polls");
        assert_eq!(woken(&calls[..expected]), expected);
        assert_eq!(woken(&calls[expected..]), 0);
    }
}

#[test]
fn call_is_woken_again_only_after_it_has_waited_again() {
    let mut waiters = CallWaiters::default();
    let call = waiters.add(&[VI]);
    for _ in 0..3 {
        for _ in 0..3 {
            waiters.notify(VI);
        }
        assert_eq!(waiters.due.len(), 1);
        assert!(!waiters.wake_due());
        assert!(is_woken(&call));
        waiters.notify(VI);
        assert!(!waiters.has_due(), "it has not checked yet");
        call.begin();
        assert!(!is_woken(&call));
    }
    waiters.notify(VI);
    call.begin();
    assert!(waiters.has_due(), "it was not woken yet, and will be");
    waiters.remove(&[VI], &call);
    assert!(waiters.waiting.is_empty());
}

#[test]
fn calls_for_hosts_are_woken_once_their_host_is_known() {
    let mut waiters = CallWaiters::default();
    let hosts = [1, 2].map(|byte| HostAddress([byte; 16]));
    let calls = hosts.map(|host| waiters.add(&[Object::Host(host), VI]));
    waiters.notify_hosts(|host| host == hosts[1]);
    assert!(!waiters.wake_due());
    assert_eq!(calls.map(|call| is_woken(&call)), [false, true]);
}

#[test]
fn dropped_waiters_wake_all_calls() {
    let mut waiters = CallWaiters::default();
    let calls: Vec<_> = (0..100).map(|_| waiters.add(&[VI, NIC])).collect();
    drop(waiters);
    assert_eq!(woken(&calls), 100);
}
