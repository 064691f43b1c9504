//! The NIC of the program, what it reports, and what is left of it at the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vipl::{
    Descriptor, ErrorCode, NetAddress, Nic, NicHandle, Ptag, ReliabilityLevel, Timeout, Vi,
    ViBuilder, ViHandle, VipError, provider,
};

use crate::events::{Event, Events};
use crate::message::LONGEST_BYTES;
use crate::{Failure, Server};

/// Longer than any step takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// A server that does not listen yet is asked again so much later.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// Names of connected VIs, for what is printed about them.
pub(crate) type Names = Arc<Mutex<HashMap<ViHandle, String>>>;

/// The open NIC and what it has reported.
pub(crate) struct Station {
    nic: Nic,
    ptag: Ptag,
    names: Names,
    events: Events,
}

impl Station {
    /// Opens the NIC. The loss of a connection is printed the moment it is reported.
    pub(crate) fn open(nic: &str) -> Result<Self, Failure> {
        let nic = Nic::open(nic)
            .map_err(|error| provider::last_error().unwrap_or_else(|| error.to_string()))?;
        nic.name_service(None)?;
        let names = Names::default();
        let events = Events::default();
        let known = Arc::clone(&names);
        let noted = events.clone();
        nic.set_error_handler(move |error| {
            // Whoever reads of it finds it noted.
            noted.note(Event {
                vi: error.vi,
                code: error.code,
            });
            if error.code == ErrorCode::ConnLost {
                let known = known.lock().unwrap_or_else(PoisonError::into_inner);
                let name = error.vi.and_then(|vi| known.get(&vi));
                println!("lost {}", name.map_or("a connection", String::as_str));
            }
            if error.code == ErrorCode::Catastrophic {
                println!("failed {:?}", error.resource);
            }
        })?;
        Ok(Self {
            ptag: nic.create_ptag()?,
            nic,
            names,
            events,
        })
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    pub(crate) fn ptag(&self) -> &Ptag {
        &self.ptag
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// A VI that is not connected.
    pub(crate) fn vi(&self, level: ReliabilityLevel, name: &str) -> Result<Vi, Failure> {
        make_vi(&self.nic, &self.ptag, &self.names, level, name)
    }

    /// Descriptors with a buffer each.
    pub(crate) fn descriptors(&self, count: usize) -> Result<Vec<Descriptor>, Failure> {
        make_descriptors(&self.nic, &self.ptag, count)
    }

    /// Connects as `own`, however long the server takes to listen.
    pub(crate) fn connect(&self, vi: &Vi, server: &Server, own: &str) -> Result<(), Failure> {
        self.request(vi, server, own)
            .map_err(|error| format!("{own} is not connected: {error}").into())
    }

    /// Requests a connection as `own`, again while no program waits there: a server does not between two waits.
    pub(crate) fn request(&self, vi: &Vi, server: &Server, own: &str) -> Result<(), VipError> {
        let local = self.nic.local_address(own.as_bytes())?;
        let remote: NetAddress = self
            .nic
            .remote_address(&server.host, server.name.as_bytes())?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match vi.connect(&local, &remote, Timeout::After(TIMEOUT)) {
                Ok(_) => return Ok(()),
                Err(VipError::NoMatch) if Instant::now() < deadline => {
                    self.watch(ASK_AGAIN);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits so long at most, or until something is reported.
    pub(crate) fn watch(&self, limit: Duration) {
        self.events.watch(limit);
    }

    /// How often a VI was reported lost, once it was, or until the limit.
    pub(crate) fn losses(&self, vi: ViHandle, limit: Duration) -> usize {
        let is_loss = |e: &Event| e.vi == Some(vi) && e.code == ErrorCode::ConnLost;
        self.events.count(limit, is_loss)
    }

    /// How often the NIC was reported to have failed, once it was, or until the limit.
    pub(crate) fn failures(&self, limit: Duration) -> usize {
        let is_failure = |e: &Event| e.vi.is_none() && e.code == ErrorCode::Catastrophic;
        self.events.count(limit, is_failure)
    }

    /// Waits until the NIC has nothing left to do, and tells its counters and events.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        // The last exchanges end when the other side has answered, or was given up.
        let counters = loop {
            let counters = provider::counters(self.nic.handle())?;
            let open = counters.iter().find(|(name, _)| name == "exchanges_open");
            match open {
                Some((_, 0)) => break counters,
                Some(_) if Instant::now() >= deadline => break counters,
                Some(_) => self.watch(ASK_AGAIN),
                None => return Err("the NIC does not count its open exchanges".into()),
            }
        };
        for (name, value) in counters {
            tell(&name, value);
        }
        let events = self.events.all();
        for event in &events {
            println!("event {:?}", event.code);
        }
        tell("events", events.len() as u64);
        Ok(())
    }
}

/// Tells the counters of a NIC as they are now, in one line: `counters NAME=NUMBER ...`.
pub(crate) fn tell_counters(nic: NicHandle) -> Result<(), VipError> {
    let counters = provider::counters(nic)?;
    let words = counters.iter().fold(String::new(), |words, (name, value)| {
        words + &format!(" {name}={value}")
    });
    println!("counters{words}");
    Ok(())
}

/// Tells a number.
pub(crate) fn tell(name: &str, value: u64) {
    println!("count {name} {value}");
}

/// A VI that is not connected, known by a name.
pub(crate) fn make_vi(
    nic: &Nic,
    ptag: &Ptag,
    names: &Names,
    level: ReliabilityLevel,
    name: &str,
) -> Result<Vi, Failure> {
    make_vi_of(nic.vi(ptag).reliability(level), names, name)
}

/// The VI that was begun, known by a name.
pub(crate) fn make_vi_of(vi: ViBuilder, names: &Names, name: &str) -> Result<Vi, Failure> {
    let vi = vi.build()?;
    names
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(vi.handle(), name.to_owned());
    Ok(vi)
}

/// Descriptors with a buffer each, for the longest message.
pub(crate) fn make_descriptors(
    nic: &Nic,
    ptag: &Ptag,
    count: usize,
) -> Result<Vec<Descriptor>, Failure> {
    let mut descriptors = nic.create_descriptors(count, 1, ptag)?;
    let buffers = nic.create_buffers(count, LONGEST_BYTES, ptag)?;
    for (descriptor, buffer) in descriptors.iter_mut().zip(buffers) {
        descriptor
            .push(buffer)
            .map_err(|_| "a descriptor without a segment")?;
    }
    Ok(descriptors)
}
