//! What an endpoint needs of its engine while it handles a message, a timeout or a call.

use vi_types::ViIndex;

use crate::counters::Counter;
use crate::endpoint::Endpoint;
use crate::engine_io::EngineIo;
use crate::n_port::NPort;

/// Everything of an engine but the endpoint that is called.
pub(crate) struct Context<'a, I> {
    pub(crate) now_ns: u64,
    /// The endpoint that is called.
    pub(crate) vi: ViIndex,
    pub(crate) port: &'a mut NPort,
    /// The endpoints before it and after it.
    others: [&'a mut [Option<Endpoint>]; 2],
    pub(crate) io: &'a mut I,
}

impl<'a, I> Context<'a, I> {
    /// Splits the endpoint in a slot from the others; `None` if the slot is free.
    #[inline(always)]
    pub(crate) fn split(
        now_ns: u64,
        vi: ViIndex,
        endpoints: &'a mut [Option<Endpoint>],
        port: &'a mut NPort,
        io: &'a mut I,
    ) -> Option<(&'a mut Endpoint, Self)> {
        let (before, rest) = endpoints.split_at_mut_checked(vi.slot())?;
        let (endpoint, after) = rest.split_first_mut()?;
        let context = Self {
            now_ns,
            vi,
            port,
            others: [before, after],
            io,
        };
        Some((endpoint.as_mut()?, context))
    }

    /// Returns another endpoint, with a context in which it has no others.
    pub(crate) fn other(&mut self, vi: ViIndex) -> Option<(&mut Endpoint, Context<'_, I>)> {
        let [before, after] = &mut self.others;
        let endpoint = match vi.slot().checked_sub(before.len()) {
            None => before.get_mut(vi.slot()),
            Some(at) => after.get_mut(at.checked_sub(1)?),
        };
        let context = Context {
            now_ns: self.now_ns,
            vi,
            port: self.port,
            others: [&mut [], &mut []],
            io: self.io,
        };
        Some((endpoint?.as_mut()?, context))
    }

    /// Allocates a handle for this endpoint, which has none: unguessable, and not used by a frame in
    /// the network. `None` if there is none.
    pub(crate) fn new_handle(&mut self) -> Option<u32>
    where
        I: EngineIo,
    {
        let (handles, io) = (&mut self.port.handles, &mut *self.io);
        let handle = handles.allocate(self.now_ns, self.vi, || io.random());
        if handle.is_none() {
            self.count(Counter::NoHandle);
        }
        handle
    }

    #[inline]
    pub(crate) fn count(&mut self, counter: Counter) {
        self.port.counters.count(counter);
    }
}
