//! An application attaches: what it is given, and its end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use super::{PATIENCE, Served, Server, Sessions, out_of_descriptors, turn_away};
use crate::attach::arena::{Arena, RingSizes};
use crate::attach::client::{Client, ClientCounters, Limits};
use crate::attach::doors::{self, InDoor};
use crate::attach::message::{Description, Reply, Request};
use crate::attach::places::{MostAttached, Place};
use crate::attach::session::{Arrival, Session};
use crate::attach::socket::{Peer, Socket};
use crate::config::QuotaConfig;
use crate::device::{self, Device};
use crate::driver::Driver;
use crate::nic;
use crate::sync::Ordering;
use crate::sys;

/// What an application is that has just attached.
struct Attached {
    session: Arc<Session>,
    key: [u8; 16],
    description: Description,
}

/// Why an application is not attached.
fn refusal(what: &str, error: &io::Error) -> Reply {
    Reply::Refused(match sys::is_out_of_descriptors(error) {
        true => out_of_descriptors(error),
        false => format!("{what}: {error}"),
    })
}

/// Why a NIC serves nobody as it is.
fn trouble_of(device: &Device) -> Option<String> {
    let held = device.hold();
    match held.as_ref().and_then(Driver::engine) {
        Some(poller) => poller.failure.map(|failure| failure.to_string()),
        // It failed, and could not be brought up anew.
        None => Some("it is down".to_owned()),
    }
}

/// Gives an application the rings and what it wakes the poll thread by, and seals the rings once it
/// has mapped them: it could have the poller wait for a hole that it punches.
fn give_rings(life: &Socket, sizes: RingSizes, waker: OwnedFd) -> io::Result<Arena> {
    let (arena, memory) = Arena::create(sizes)?;
    life.send(&Reply::Rings, &[memory.as_raw_fd(), waker.as_raw_fd()])?;
    drop(waker);
    match life.receive()? {
        Some((Request::RingsMapped, fds)) if fds.is_empty() => {
            arena.seal(memory.as_fd())?;
            Ok(arena)
        }
        _ => Err(io::Error::other(
            "it does not report that it has mapped the rings",
        )),
    }
}

impl Server {
    /// An application, from its arrival to its end.
    pub(super) fn attach(
        &self,
        socket: Socket,
        peer: Peer,
        device: &str,
        in_door: InDoor,
    ) -> io::Result<()> {
        let life = Arc::new(socket);
        let attached = match self.arrive(&life, peer, device) {
            Ok(attached) => attached,
            Err(reply) => return turn_away(&life, reply),
        };
        // From now on the session closes it, which has a place for as long as that takes.
        drop(life);
        drop(in_door);
        self.serve(attached)
    }

    /// Gives an application what it needs, or says why not.
    fn arrive(&self, life: &Arc<Socket>, peer: Peer, device: &str) -> Result<Attached, Reply> {
        let (quota, default_share, place) = self.admit(life, peer).map_err(Reply::Refused)?;
        let served = self.named(device).ok_or_else(|| self.unknown_nic(device))?;
        let quota = quota.on(&served.config, default_share);
        let (name, pid) = (&served.config.name, peer.pid);
        // Before anything else: it tells of the end also where a child has the socket, too.
        let lives = life
            .peer_process()
            .map_err(|error| refusal(&format!("process {pid} cannot be watched"), &error))?;
        let pace = self.calls.of(peer.uid);
        pace.wait(quota.max_calls_per_second, PATIENCE)
            .map_err(|calls| {
                let text = format!(
                    "max_calls_per_second = {calls}: user {} makes more",
                    peer.uid
                );
                Reply::Refused(text)
            })?;
        let device = served.device;
        let failed = |error: io::Error| {
            refusal(
                &format!("NIC {name}: process {pid} cannot be served"),
                &error,
            )
        };
        let sizes = RingSizes::for_segments(device.config.max_segments_per_descriptor);
        let (wakeup, waker) = served.core.add_client().map_err(failed)?;
        let arena = give_rings(life, sizes, waker).map_err(failed)?;
        let counters = Arc::new(ClientCounters::default());
        let limits = Limits {
            segments: device.config.max_segments_per_descriptor,
            descriptors: quota.max_descriptors,
            share: quota.rate_share,
        };
        let client = Client::new(
            peer.uid,
            arena,
            wakeup,
            Arc::clone(life),
            Arc::clone(&counters),
            limits,
        );
        let watched = lives.try_clone().map_err(failed)?;
        let most = MostAttached::from(&*self.process());
        let files = self.files.attach((peer, device.number()), watched, most);
        // Whoever brings the NIC up anew ends all who are served on it, and looks for them among
        // the sessions.
        let up = self.up(served).map_err(Reply::Refused)?;
        let client = {
            let mut held = device.hold();
            let poller = held.as_mut().and_then(Driver::engine_mut);
            let poller = poller.ok_or_else(|| Reply::Refused(format!("NIC {name} is down")))?;
            poller.path.add_client(client)
        };
        let session = Arc::new(Session::new(
            device,
            Arrival {
                peer,
                client,
                quota,
                foreign_memory: self.process().foreign_memory,
                counters,
                life: Arc::clone(life),
                lives,
                pace,
                files,
                place,
                reservations: Arc::clone(&self.reservations),
            },
        ));
        let mut key = [0; 16];
        sys::random_bytes(&mut key);
        let entered = self.enter(key, &session);
        drop(up);
        if !entered {
            session.end();
            return Err(Reply::Refused("this process ends".to_owned()));
        }
        let native_mtu_bytes = nic::native_mtu_bytes(device).unwrap_or(0);
        Ok(Attached {
            session,
            key,
            description: Description {
                max_transfer_bytes: device.max_transfer_bytes(),
                ..Description::of(&served.config, &quota, native_mtu_bytes)
            },
        })
    }

    /// False if the process ends: who ends the sessions may not find this one.
    fn enter(&self, key: [u8; 16], session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions();
        if self.over.load(Ordering::SeqCst) {
            return false;
        }
        sessions.insert(key, Arc::clone(session));
        true
    }

    /// An application that is attached, to its end.
    fn serve(&self, attached: Attached) -> io::Result<()> {
        let Attached {
            session,
            key,
            description,
        } = attached;
        let (name, Peer { pid, uid, .. }) = (&session.device.config.name, session.peer);
        let line = format_args!("NIC {name}: process {pid} of user {uid} is attached");
        doors::say(log::Level::Info, line);
        let reply = Reply::Attached {
            key,
            nic: Box::new(description),
        };
        let told = session.life.send(&reply, &[]);
        if told.is_ok() {
            sys::await_any([session.life.fd(), session.lives.as_raw_fd()]);
        }
        session.end();
        // To the application: nothing of it is reached any more.
        session.life.shut_down();
        self.sessions().remove(&key);
        self.ended.notify_all();
        let line = format_args!("NIC {name}: process {pid} is gone");
        doors::say(log::Level::Info, line);
        // Here, since a poll thread or a question for the status may drop the session last.
        session.life.close_file();
        told
    }

    /// Admits an application, or says why not: its quota, its share of what that does not name, and
    /// its place, which it has from then on.
    fn admit(&self, socket: &Socket, peer: Peer) -> Result<(QuotaConfig, u32, Place), String> {
        let gids = socket.peer_groups().map_err(|e| e.to_string())?;
        // Names are looked up while nobody waits for the lock.
        let process = self.process().clone();
        let quota = process.admit(peer.uid, &gids).map_err(|e| e.to_string())?;
        let place = self.places.take(peer.uid, MostAttached::from(&process))?;
        Ok((quota, process.default_share, place))
    }

    /// Sees to it that a NIC is up: one that failed is brought up anew when nobody has it any
    /// more. For as long as what this gives is kept, nobody takes it down.
    fn up<'a>(&self, served: &'a Served) -> Result<MutexGuard<'a, u64>, String> {
        let has_it = |session: &Arc<Session>| core::ptr::eq(session.device, served.device);
        let in_use = |sessions: &mut Sessions| sessions.values().any(has_it);
        let give_up_at = Instant::now() + PATIENCE;
        loop {
            let mut nic = served.nic.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(trouble) = trouble_of(served.device) else {
                return Ok(nic);
            };
            let mut sessions = self.sessions();
            if self.over.load(Ordering::SeqCst) {
                return Err("this process ends".to_owned());
            }
            if !in_use(&mut sessions) {
                drop(sessions);
                self.bring_up(served, &mut nic, &trouble)?;
                return Ok(nic);
            }
            drop(nic);
            // One that has just closed it may not be gone yet.
            let left = give_up_at.saturating_duration_since(Instant::now());
            let waited = self.ended.wait_timeout_while(sessions, left, in_use);
            let (sessions, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(sessions);
            if waited.timed_out() {
                return Err(format!(
                    "NIC {}: {trouble}: it can be opened again when all programs have closed it",
                    served.config.name
                ));
            }
        }
    }

    /// `nic` is the process's opening.
    fn bring_up(&self, served: &Served, nic: &mut u64, trouble: &str) -> Result<(), String> {
        let name = &served.config.name;
        let line = format_args!("NIC {name}: {trouble}: it is brought up anew");
        doors::say(log::Level::Warn, line);
        // It is closed already if it could not be brought up before.
        let _was_open = nic::close(*nic);
        let begin = |_| {
            served.core.rouse();
            Ok(())
        };
        let (_, opened) = device::open_served(&served.config, begin).map_err(|error| {
            format!("NIC {name}: {trouble}, and cannot be brought up anew: {error}")
        })?;
        *nic = opened;
        Ok(())
    }
}
