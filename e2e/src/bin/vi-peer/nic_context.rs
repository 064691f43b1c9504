//! The open NIC of the program, its events, and its counters at the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vipl::{
    Descriptor, ErrorCode, NetAddress, Nic, NicHandle, Ptag, ReliabilityLevel, Timeout, Vi,
    ViBuilder, ViHandle, VipError, provider,
};

use crate::events::{Event, Events};
use crate::message::LONGEST_BYTES;
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Upper limit for one step on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of requests to a server that is not listening yet, and of counter polls.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Names of the peers of VIs, for output.
pub(crate) type Names = Arc<Mutex<HashMap<ViHandle, String>>>;

/// An open NIC and its events.
pub(crate) struct NicContext {
    nic: Nic,
    ptag: Ptag,
    names: Names,
    events: Events,
}

impl NicContext {
    /// Opens the NIC. Connection losses and NIC failures are printed when they are reported.
    pub(crate) fn open(nic: &str) -> Result<Self, Failure> {
        let nic = Nic::open(nic)
            .map_err(|error| provider::last_error().unwrap_or_else(|| error.to_string()))?;
        nic.name_service(None)?;
        let names = Names::default();
        let events = Events::default();
        let handler_names = Arc::clone(&names);
        let recorded = events.clone();
        nic.set_error_handler(move |error| {
            // Recorded before it is printed: a test that reads the line may rely on the record.
            recorded.record(Event {
                vi: error.vi,
                code: error.code,
            });
            if error.code == ErrorCode::ConnLost {
                let names = handler_names.lock().unwrap_or_else(PoisonError::into_inner);
                let name = error.vi.and_then(|vi| names.get(&vi));
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

    /// Creates a VI, not connected; `name` is that of its peer.
    pub(crate) fn vi(&self, level: ReliabilityLevel, name: &str) -> Result<Vi, Failure> {
        make_vi(&self.nic, &self.ptag, &self.names, level, name)
    }

    /// Creates descriptors with one buffer each.
    pub(crate) fn descriptors(&self, count: usize) -> Result<Vec<Descriptor>, Failure> {
        make_descriptors(&self.nic, &self.ptag, count)
    }

    /// Connects as `client`; repeats the request until the server listens.
    pub(crate) fn connect(
        &self,
        vi: &Vi,
        server: &ServerAddress,
        client: &str,
    ) -> Result<(), Failure> {
        self.request(vi, server, client)
            .map_err(|error| format!("{client} is not connected: {error}").into())
    }

    /// Requests a connection as `client`, repeatedly while no program is listening; a server is not between two calls.
    pub(crate) fn request(
        &self,
        vi: &Vi,
        server: &ServerAddress,
        client: &str,
    ) -> Result<(), VipError> {
        let local = self.nic.local_address(client.as_bytes())?;
        let remote: NetAddress = self
            .nic
            .remote_address(&server.host, server.name.as_bytes())?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match vi.connect(&local, &remote, Timeout::After(TIMEOUT)) {
                Ok(_) => return Ok(()),
                Err(VipError::NoMatch) if Instant::now() < deadline => {
                    self.watch(RETRY_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Accepts the next client that does not time out; returns its name.
    pub(crate) fn accept(&self, vi: &Vi, name: &str) -> Result<String, Failure> {
        let local = self.nic.local_address(name.as_bytes())?;
        loop {
            let mut request = self.nic.connect_wait(&local, Timeout::After(TIMEOUT))?;
            let client = request.remote().discriminator;
            match request.accept(vi) {
                Ok(()) => return Ok(String::from_utf8_lossy(client.as_bytes()).into_owned()),
                // The client has timed out and repeats its request.
                Err(VipError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until an event is reported or the limit expires.
    pub(crate) fn watch(&self, limit: Duration) {
        self.events.watch(limit);
    }

    /// Waits for a connection loss of a VI; returns the number of losses, 0 after the limit.
    pub(crate) fn losses(&self, vi: ViHandle, limit: Duration) -> usize {
        let is_loss = |e: &Event| e.vi == Some(vi) && e.code == ErrorCode::ConnLost;
        self.events.count(limit, is_loss)
    }

    /// Waits for a NIC failure; returns the number of failures, 0 after the limit.
    pub(crate) fn failures(&self, limit: Duration) -> usize {
        let is_failure = |e: &Event| e.vi.is_none() && e.code == ErrorCode::Catastrophic;
        self.events.count(limit, is_failure)
    }

    /// Waits until the NIC has no open exchanges, then prints its counters and events.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        // The last exchanges end when the peer has responded, or after their timeout.
        let counters = loop {
            let counters = provider::counters(self.nic.handle())?;
            let open = counters.iter().find(|(name, _)| name == "exchanges_open");
            match open {
                Some((_, 0)) => break counters,
                Some(_) if Instant::now() >= deadline => break counters,
                Some(_) => self.watch(RETRY_INTERVAL),
                None => return Err("the NIC does not count its open exchanges".into()),
            }
        };
        for (name, value) in counters {
            print_count(&name, value);
        }
        let events = self.events.all();
        for event in &events {
            println!("event {:?}", event.code);
        }
        print_count("events", events.len() as u64);
        Ok(())
    }
}

/// Prints the current counters of a NIC in one line: `counters NAME=NUMBER ...`.
pub(crate) fn print_counters(nic: NicHandle) -> Result<(), VipError> {
    let counters = provider::counters(nic)?;
    let words = counters.iter().fold(String::new(), |words, (name, value)| {
        words + &format!(" {name}={value}")
    });
    println!("counters{words}");
    Ok(())
}

/// Prints a counter: `count NAME NUMBER`.
pub(crate) fn print_count(name: &str, value: u64) {
    println!("count {name} {value}");
}

/// Creates a VI with a reliability level, and records the name of its peer.
pub(crate) fn make_vi(
    nic: &Nic,
    ptag: &Ptag,
    names: &Names,
    level: ReliabilityLevel,
    name: &str,
) -> Result<Vi, Failure> {
    build_vi(nic.vi(ptag).reliability(level), names, name)
}

/// Creates a VI from a builder, and records the name of its peer.
pub(crate) fn build_vi(vi: ViBuilder, names: &Names, name: &str) -> Result<Vi, Failure> {
    let vi = vi.build()?;
    names
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(vi.handle(), name.to_owned());
    Ok(vi)
}

/// Creates descriptors with one buffer each, for the longest message.
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
            .map_err(|_| "a descriptor has no free segment")?;
    }
    Ok(descriptors)
}
