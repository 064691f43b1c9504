//! Releases all objects of a closed NIC handle (VIPL 3.1.2), in portions: other threads
//! acquire the backend lock between them.

use vi_core::biased_lock::{BiasedGuard, Unbias};
use vi_core::memory::table::Removed;
use vi_core::notify_slot::EndedNotifier;
use vi_core::sync::Ordering;
use vi_core::vi::ViShared;

use super::connecting::id_of;
use super::cq;
use super::vis::detach;
use crate::call_waiters::Object;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::Backend;
use crate::nic_handle::Conn;

/// Descriptors that one portion of a release flushes, at least those of one VI.
const DESCRIPTORS_PER_PORTION: u32 = 1024;
/// Cost of a VI besides its descriptors, in descriptors.
const DESCRIPTORS_PER_VI: u32 = 32;
/// Regions that one portion of a release deregisters.
const REGIONS_PER_PORTION: usize = 256;

/// A VI and its handle when it was found.
type FoundVi = (Vi, u64);

/// Releases all objects that a closed NIC handle owns (VIPL 3.1.2); `conns` are its pending
/// requests, which are rejected. Returns the notifiers of its queues and its mapped memory, which the caller
/// joins and drops.
pub(crate) fn release_nic_handle(
    device: &'static Device,
    nic_handle: u64,
    conns: &[Conn],
) -> (Vec<EndedNotifier>, Vec<Removed>) {
    let (mut ended, mut removed) = (Vec::new(), Vec::new());
    let vis = vis_of(device, nic_handle);
    let mut remaining = vis.as_slice();
    while !remaining.is_empty() {
        let mut held = device.lock();
        let Some(backend) = held.as_mut() else {
            return (ended, removed);
        };
        remaining = release_some(backend, remaining, &mut ended);
        if remaining.is_empty() {
            device.wake_waiters(backend);
        } else {
            yield_backend_lock(device, held);
        }
    }
    if let Some(backend) = device.lock().as_mut() {
        release_cqs(device, nic_handle, &mut ended);
        reject_all(backend, conns);
        if let Some(state) = backend.state_mut() {
            state.path.calls.notify(Object::NicHandle(nic_handle));
        }
        device.wake_waiters(backend);
    }
    loop {
        let held = device.lock();
        if held.is_none() {
            return (ended, removed);
        }
        let some = (device.shared.regions).deregister_some(nic_handle, REGIONS_PER_PORTION);
        let is_last = some.len() < REGIONS_PER_PORTION;
        removed.extend(some);
        if is_last {
            return (ended, removed);
        }
        yield_backend_lock(device, held);
    }
}

/// Returns the VIs of a closed NIC handle; no more are created.
fn vis_of(device: &'static Device, nic_handle: u64) -> Vec<FoundVi> {
    // Waits for a call that found the handle open and is creating a VI under the backend lock.
    drop(device.lock());
    let found = |shared: &'static ViShared| {
        let (vi, handle) = (Vi { device, shared }, shared.live_handle());
        (handle != 0 && vi.nic_handle() == nic_handle).then_some((vi, handle))
    };
    device.shared.vis.iter().filter_map(found).collect()
}

/// Releases the backend lock between portions of a release: polls first, since a thread that reacquires the lock at
/// once would starve the pollers, and lets waiting calls acquire the lock.
fn yield_backend_lock(device: &'static Device, mut held: BiasedGuard<'_, Option<Backend>>) {
    if let Some(backend) = held.as_mut() {
        device.poll_thread.wake_if_armed(backend);
        backend.poll(&device.shared.doorbells);
        device.wake_waiters(backend);
    }
    drop(held);
    std::thread::yield_now();
}

/// Releases as many of these VIs as fit into one portion; returns the remaining ones.
fn release_some<'a>(
    backend: &mut Backend,
    vis: &'a [FoundVi],
    ended: &mut Vec<EndedNotifier>,
) -> &'a [FoundVi] {
    let mut budget = DESCRIPTORS_PER_PORTION;
    let fits = |(vi, _): &&FoundVi| {
        let descriptors = vi.send.depth() + vi.recv.depth();
        let fits = budget > 0;
        budget = budget.saturating_sub(DESCRIPTORS_PER_VI + descriptors);
        fits
    };
    let (now, later) = vis.split_at(vis.iter().take_while(fits).count());
    let mut unbias = Unbias::default();
    for (vi, _) in now {
        vi.unbias_ends(&mut unbias);
    }
    drop(unbias);
    for (vi, handle) in now {
        // Another thread may have destroyed it meanwhile.
        if vi.is_live(*handle) {
            release(*vi, backend, ended);
        }
    }
    later
}

/// Destroys a VI in any state, with its posted descriptors.
fn release(vi: Vi, backend: &mut Backend, ended: &mut Vec<EndedNotifier>) {
    {
        let _ends = vi.close_ends();
        vi.retire();
    }
    backend.end_connection(&vi);
    for queue in [&vi.send, &vi.recv] {
        queue.clear(&mut queue.reap_end.lock());
    }
    if !backend.destroy_vi(vi.index) {
        log::error!("NIC {}: VI not released", vi.nic.name);
    }
    detach(vi, backend, ended);
}

/// Releases the completion queues of a NIC handle. The caller holds the backend lock.
fn release_cqs(device: &'static Device, nic_handle: u64, ended: &mut Vec<EndedNotifier>) {
    for cq in device.shared.cqs.iter() {
        if cq.live_handle() == 0 || cq.nic_handle() != nic_handle {
            continue;
        }
        if cq.attached.load(Ordering::Relaxed) == 0 {
            ended.extend(cq::retire(cq));
        } else {
            ended.extend(cq.notify.end());
            let line = "close: completion queue still used by VIs of another NIC handle";
            device
                .shared
                .log_limited(log::Level::Warn, format_args!("{line}"));
        }
    }
}

/// Rejects pending requests; those of an attached NIC are rejected by the process.
fn reject_all(backend: &mut Backend, conns: &[Conn]) {
    let Some((transport, state)) = backend.local_mut() else {
        return;
    };
    let now_ns = state.clock.now_ns();
    for conn in conns {
        // An error means that the request was withdrawn.
        let _withdrawn = transport.reject(now_ns, id_of(*conn), &mut state.path);
    }
    state.path.flush();
}

#[cfg(test)]
mod tests {
    use vi_core::memory::backing::Owner;
    use vi_types::{PtagHandle, ViAttributes};

    use super::*;
    use crate::config::{Limits, Network, NicConfig};
    use crate::datapath::ClientId;
    use crate::lookup::vi_of;
    use crate::nic;

    const VIS: usize = 100;

    /// Opens a NIC with two handles of many VIs each. The first ten VIs of the second handle have
    /// `posted` receives.
    fn open_with_vis(test: &str, posted: usize) -> (&'static Device, u64, u64) {
        let config = NicConfig {
            limits: Limits {
                max_vi: 2 * VIS as u32,
                ..Limits::default()
            },
            network: Network::segment(format!("unit-{}-release-{test}", std::process::id())),
            ..NicConfig::default()
        };
        let (device, kept) = crate::open::open_without_threads(&config).unwrap();
        let closed = device.nic_handles.open(device.shared.number, 0);
        let make = |nic, ptag| {
            let settings = ViAttributes {
                reliability: 2,
                max_transfer_bytes: 4096,
                ptag: Some(PtagHandle::from_raw(ptag)),
                ..ViAttributes::default()
            };
            vi_of(nic::create_vi(nic, &settings, 0, 0).unwrap()).unwrap()
        };
        let tags = [kept, closed].map(|nic| nic::create_ptag(nic).unwrap());
        for number in 0..VIS {
            let vi = make(closed, tags[1]);
            make(kept, tags[0]);
            let mut held = device.lock();
            let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
            // An application that does not poll its completions.
            let owner = Owner::client(78).unwrap();
            poller.path.vi(vi.index).unwrap().serve(ClientId(77), owner);
            for _ in 0..if number < 10 { posted } else { 0 } {
                assert!(vi.recv.post(&mut vi.recv.post_end.lock(), |_| ()));
            }
        }
        (device, kept, closed)
    }

    fn live(device: &'static Device, nic_handle: u64) -> usize {
        let is_its = |vi: &&ViShared| vi.live_handle() != 0 && vi.nic_handle() == nic_handle;
        device.shared.vis.iter().filter(is_its).count()
    }

    #[test]
    fn one_portion_releases_a_limited_number_of_vis() {
        let max = (DESCRIPTORS_PER_PORTION / DESCRIPTORS_PER_VI) as usize;
        for (posted, first) in [(0, max), (480, 2), (1024, 1)] {
            let (device, kept, closed) = open_with_vis(&format!("portion-{posted}"), posted);
            let mut ended = Vec::new();
            let vis = vis_of(device, closed);
            assert_eq!(vis.len(), VIS);
            let mut remaining = vis.as_slice();
            let mut portions = Vec::new();
            while !remaining.is_empty() {
                let mut held = device.lock();
                let before = remaining.len();
                remaining = release_some(held.as_mut().unwrap(), remaining, &mut ended);
                portions.push(before - remaining.len());
                assert_eq!(
                    (live(device, closed), live(device, kept)),
                    (remaining.len(), VIS)
                );
            }
            assert_eq!(portions[0], first, "{portions:?}");
            assert!(portions.iter().all(|vis| *vis <= max), "{portions:?}");
            for nic in [closed, kept] {
                crate::open::close(device, nic).unwrap();
            }
        }
    }

    #[test]
    fn nic_is_polled_between_portions_of_a_large_release() {
        let (device, kept, closed) = open_with_vis("frames", 1024);
        let polls = || {
            device
                .lock()
                .as_ref()
                .and_then(Backend::state)
                .unwrap()
                .polls
        };
        let before = polls();
        crate::open::close(device, closed).unwrap();
        assert_eq!((live(device, closed), live(device, kept)), (0, VIS));
        // Ten VIs needed a portion each, and the remaining ones three.
        assert_eq!(polls() - before, 10 + 3 - 1);
        crate::open::close(device, kept).unwrap();
    }

    #[test]
    fn vi_destroyed_by_another_thread_is_skipped() {
        let (device, kept, closed) = open_with_vis("meanwhile", 0);
        let vis = vis_of(device, closed);
        let (gone, handle) = vis[0];
        nic::destroy_vi(handle).unwrap();
        let settings = ViAttributes {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag: Some(PtagHandle::from_raw(nic::create_ptag(kept).unwrap())),
            ..ViAttributes::default()
        };
        let new = nic::create_vi(kept, &settings, 0, 0).unwrap();
        assert!(
            core::ptr::eq(vi_of(new).unwrap().shared, gone.shared),
            "in the same slot"
        );
        let mut ended = Vec::new();
        release_some(device.lock().as_mut().unwrap(), &vis[..1], &mut ended);
        assert!(gone.is_live(new));
        for nic in [closed, kept] {
            crate::open::close(device, nic).unwrap();
        }
    }
}
