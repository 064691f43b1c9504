//! An opening ended with all that it owns (VIPL 3.1.2), in portions: others have their turns
//! between them.

use vi_engine::ConnId;

use super::cq;
use super::vis::{detach, detach_local, end_connection};
use crate::device::Device;
use crate::driver::Driver;
use crate::memory::table::Removed;
use crate::notify::Ended;
use crate::poller::Poller;
use crate::sync::Ordering;
use crate::token::{Held, Unbias};
use crate::vi::ViShared;

/// Descriptors that come back in one turn of a release, those of one VI at least.
const DESCRIPTORS_IN_TURN: u32 = 1024;
/// What a VI costs beside its descriptors, counted in these.
const DESCRIPTORS_PER_VI: u32 = 32;
/// Registrations that end in one turn of a release.
const REGIONS_IN_TURN: usize = 256;

/// A VI and the handle that it had when it was found.
type Found = (&'static ViShared, u64);

/// Releases whatever an opening that ended still owns (VIPL 3.1.2); `conns` are the requests
/// that it was told of and did not answer. The notifiers of its queues and the memory that was
/// mapped for it are left to the caller.
pub(crate) fn release_instance(
    device: &'static Device,
    instance: u64,
    conns: &[ConnId],
) -> (Vec<Ended>, Vec<Removed>) {
    let (mut ended, mut removed) = (Vec::new(), Vec::new());
    let vis = vis_of(device, instance);
    let mut rest = vis.as_slice();
    while !rest.is_empty() {
        let mut held = device.hold();
        let Some(driver) = held.as_mut() else {
            return (ended, removed);
        };
        rest = release_some(driver, rest, &mut ended);
        if rest.is_empty() {
            device.announce(driver);
        } else {
            let_others(device, held);
        }
    }
    if let Some(driver) = device.hold().as_mut() {
        release_cqs(device, instance, &mut ended);
        if let Driver::Engine(poller) = driver {
            refuse(poller, conns);
        }
        device.announce(driver);
    }
    loop {
        let held = device.hold();
        if held.is_none() {
            return (ended, removed);
        }
        let some = device.regions.deregister_some(instance, REGIONS_IN_TURN);
        let is_last = some.len() < REGIONS_IN_TURN;
        removed.extend(some);
        if is_last {
            return (ended, removed);
        }
        let_others(device, held);
    }
}

/// The VIs of an opening that ended: those that it has, and no others come.
fn vis_of(device: &'static Device, instance: u64) -> Vec<Found> {
    // Whoever found it open when making a VI for it has had the turn after this.
    drop(device.hold());
    let found = |vi: &'static ViShared| {
        let handle = vi.live_handle();
        (handle != 0 && vi.instance() == instance).then_some((vi, handle))
    };
    device.vis.iter().filter_map(found).collect()
}

/// In the middle of a release: a turn for everybody's frames, since who comes back so soon hardly
/// leaves the pollers one, and the chance of one for calls that wait.
fn let_others(device: &'static Device, mut held: Held<'_, Option<Driver>>) {
    if let Some(driver) = held.as_mut() {
        device.rest.leave(driver);
        driver.turn(&device.doorbells);
        device.announce(driver);
    }
    drop(held);
    std::thread::yield_now();
}

/// Ends as many of these VIs as one turn has room for; the others are left.
fn release_some<'a>(driver: &mut Driver, vis: &'a [Found], ended: &mut Vec<Ended>) -> &'a [Found] {
    let mut room = DESCRIPTORS_IN_TURN;
    let fits = |(vi, _): &&Found| {
        let descriptors = vi.send.depth() + vi.recv.depth();
        let had_room = room > 0;
        room = room.saturating_sub(DESCRIPTORS_PER_VI + descriptors);
        had_room
    };
    let (now, later) = vis.split_at(vis.iter().take_while(fits).count());
    let mut unbias = Unbias::default();
    for (vi, _) in now {
        vi.unbias_ends(&mut unbias);
    }
    drop(unbias);
    for (vi, handle) in now {
        // Another thread may have ended it meanwhile.
        if vi.is_live(*handle) {
            release(vi, driver, ended);
        }
    }
    later
}

/// Ends a VI in whatever state it is, with whatever is on its queues.
fn release(vi: &'static ViShared, driver: &mut Driver, ended: &mut Vec<Ended>) {
    {
        let _ends = vi.close_ends();
        vi.retire();
    }
    match driver {
        Driver::Engine(poller) => end_connection(vi, poller),
        Driver::Process(attachment) => attachment.flush(vi.index),
    }
    for queue in [&vi.send, &vi.recv] {
        queue.clear(&mut queue.reap_end.hold());
    }
    match driver {
        Driver::Engine(poller) => {
            if !poller.engine.destroy_vi(vi.index) {
                log::error!("NIC {}: a VI could not be released", vi.device.config.name);
            }
            detach(vi, poller, ended);
        }
        Driver::Process(_) => detach_local(vi, driver, ended),
    }
}

/// The caller holds the turn.
fn release_cqs(device: &'static Device, instance: u64, ended: &mut Vec<Ended>) {
    for cq in device.cqs.iter() {
        if cq.live_handle() == 0 || cq.instance() != instance {
            continue;
        }
        if cq.attached.load(Ordering::Relaxed) == 0 {
            ended.extend(cq::retire(cq));
        } else {
            ended.extend(cq.notify.end());
            let line = "a completion queue outlives its opening: VIs of another one use it";
            device.log_limited(log::Level::Warn, format_args!("{line}"));
        }
    }
}

fn refuse(poller: &mut Poller, conns: &[ConnId]) {
    let now_ns = poller.clock.now_ns();
    for conn in conns {
        // A request that is gone already needs no answer.
        let _gone = poller.engine.reject(now_ns, *conn, &mut poller.path);
    }
    poller.path.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::client::ClientId;
    use crate::config::NicConfig;
    use crate::memory::place::Owner;
    use crate::nic;
    use crate::vi::{ViSettings, vi_of};

    const VIS: usize = 100;

    /// A NIC, an opening that stays, and one with many VIs. Of these, some of the first have
    /// `posted` receives.
    fn crowd(test: &str, posted: usize) -> (&'static Device, u64, u64) {
        let config = NicConfig {
            segment: format!("unit-{}-release-{test}", std::process::id()),
            max_vi: 2 * VIS as u32,
            ..NicConfig::default()
        };
        let (device, stays) = crate::device::open_unattended(&config).unwrap();
        let ends = device.instances.open(device.number(), 0);
        let make = |nic, ptag| {
            let settings = ViSettings {
                reliability: 2,
                max_transfer_bytes: 4096,
                ptag,
                ..ViSettings::default()
            };
            vi_of(nic::create_vi(nic, &settings, 0, 0).unwrap()).unwrap()
        };
        let tags = [stays, ends].map(|nic| nic::create_ptag(nic).unwrap());
        for number in 0..VIS {
            let vi = make(ends, tags[1]);
            make(stays, tags[0]);
            let mut held = device.hold();
            let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
            // Of an application that listens to nothing.
            let owner = Owner::client(78).unwrap();
            poller.path.vi(vi.index).unwrap().serve(ClientId(77), owner);
            for _ in 0..if number < 10 { posted } else { 0 } {
                assert!(vi.recv.post(&mut vi.recv.post_end.hold(), |_| ()));
            }
        }
        (device, stays, ends)
    }

    fn live(device: &'static Device, instance: u64) -> usize {
        let is_its = |vi: &&ViShared| vi.live_handle() != 0 && vi.instance() == instance;
        device.vis.iter().filter(is_its).count()
    }

    #[test]
    fn a_turn_ends_no_more_vis_than_it_has_room_for() {
        let most = (DESCRIPTORS_IN_TURN / DESCRIPTORS_PER_VI) as usize;
        for (posted, first) in [(0, most), (480, 2), (1024, 1)] {
            let (device, stays, ends) = crowd(&format!("turn-{posted}"), posted);
            let mut ended = Vec::new();
            let vis = vis_of(device, ends);
            assert_eq!(vis.len(), VIS);
            let mut rest = vis.as_slice();
            let mut portions = Vec::new();
            while !rest.is_empty() {
                let mut held = device.hold();
                let before = rest.len();
                rest = release_some(held.as_mut().unwrap(), rest, &mut ended);
                portions.push(before - rest.len());
                assert_eq!((live(device, ends), live(device, stays)), (rest.len(), VIS));
            }
            assert_eq!(portions[0], first, "{portions:?}");
            assert!(portions.iter().all(|vis| *vis <= most), "{portions:?}");
            for nic in [ends, stays] {
                crate::device::close(device, nic).unwrap();
            }
        }
    }

    #[test]
    fn frames_of_others_move_while_a_large_opening_ends() {
        let (device, stays, ends) = crowd("frames", 1024);
        let turns = || {
            device
                .hold()
                .as_ref()
                .and_then(Driver::engine)
                .unwrap()
                .turns
        };
        let before = turns();
        crate::device::close(device, ends).unwrap();
        assert_eq!((live(device, ends), live(device, stays)), (0, VIS));
        // Ten VIs had their own, and what was left needs three.
        assert_eq!(turns() - before, 10 + 3 - 1);
        crate::device::close(device, stays).unwrap();
    }

    #[test]
    fn a_vi_that_another_thread_ended_meanwhile_is_left_alone() {
        let (device, stays, ends) = crowd("meanwhile", 0);
        let vis = vis_of(device, ends);
        let (gone, handle) = vis[0];
        nic::destroy_vi(handle).unwrap();
        let settings = ViSettings {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag: nic::create_ptag(stays).unwrap(),
            ..ViSettings::default()
        };
        let new = nic::create_vi(stays, &settings, 0, 0).unwrap();
        assert!(core::ptr::eq(vi_of(new).unwrap(), gone), "in its place");
        let mut ended = Vec::new();
        release_some(device.hold().as_mut().unwrap(), &vis[..1], &mut ended);
        assert!(gone.is_live(new));
        for nic in [ends, stays] {
            crate::device::close(device, nic).unwrap();
        }
    }
}
