//! TLS between VI/TCP and TCP: what goes out is encrypted, what comes in decrypted and copied to
//! its place. The handshake goes on whenever somebody reads or writes.

use std::io::{self, BufRead, IoSlice, Write};
use std::net::IpAddr;

use pmd_port::fork::Descriptor;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use socket2::SockRef;

use super::credentials::Credentials;
use crate::datapath::stream::Pieces;
use crate::log_limiter::LogLimiter;

/// What is encrypted and not yet with TCP, about at most: as much goes with one system call.
const WAITING_BYTES: usize = 256 << 10;
/// What is read at once and not yet decrypted.
const CAME_BYTES: usize = 32 << 10;
/// One record's worth of what is sent, put together from its pieces.
const RECORD_BYTES: usize = 16 << 10;
/// System calls of one read, at most.
const CALLS: u32 = 8;

/// One end of a TLS connection.
pub(super) struct Secure {
    session: Connection,
    record: Box<[u8]>,
    came: Box<[u8]>,
    /// What of it is not decrypted yet.
    left: core::ops::Range<usize>,
    /// Somebody read or wrote: TCP is there.
    begun: bool,
    /// TCP had no more.
    dry: bool,
    /// The other end broke TLS, or we refused it.
    failed: bool,
    said_end: bool,
    log_limiter: &'static LogLimiter,
}

impl core::fmt::Debug for Secure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Neither keys nor data.
        f.debug_struct("Secure").finish_non_exhaustive()
    }
}

/// The other end broke TLS, or refused us, or we it.
pub(super) fn is_breach(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// TCP ended, and TLS did not say that it would.
pub(super) fn is_cut(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// There may be more than one read takes.
pub(super) fn is_for_next(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

impl Secure {
    /// The end that asks, of a host whose certificate must be for this address.
    pub(super) fn asking(credentials: &Credentials, peer: IpAddr) -> io::Result<Box<Self>> {
        let name = ServerName::IpAddress(peer.into());
        let session = ClientConnection::new(credentials.asking.clone(), name);
        let session = session.map_err(io::Error::other)?;
        Ok(Self::new(session, credentials.log_limiter))
    }

    /// The end that is asked.
    pub(super) fn asked(credentials: &Credentials) -> io::Result<Box<Self>> {
        let session = ServerConnection::new(credentials.asked.clone());
        let session = session.map_err(io::Error::other)?;
        Ok(Self::new(session, credentials.log_limiter))
    }

    fn new(session: impl Into<Connection>, log_limiter: &'static LogLimiter) -> Box<Self> {
        let mut session = session.into();
        session.set_buffer_limit(Some(WAITING_BYTES));
        Box::new(Self {
            session,
            record: vec![0; RECORD_BYTES].into_boxed_slice(),
            came: vec![0; CAME_BYTES].into_boxed_slice(),
            left: 0..0,
            begun: false,
            dry: false,
            failed: false,
            said_end: false,
            log_limiter,
        })
    }

    /// Do both ends know each other?
    pub(super) fn is_established(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// May there be more to be read than the last read brought?
    pub(super) fn has_more(&self) -> bool {
        !self.dry
    }

    /// Does something that was taken wait for room in TCP?
    pub(super) fn is_waiting(&self) -> bool {
        self.session.wants_write()
    }

    /// Writes what waits, as much as TCP takes. True if nothing waits any more. Before anybody read
    /// or wrote TCP may not be there, and is not touched.
    pub(super) fn flush(&mut self, socket: &Descriptor, more: bool) -> io::Result<bool> {
        let mut wire = Wire {
            socket: SockRef::from(socket),
            flags: libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 },
        };
        while self.begun && self.session.wants_write() {
            match self.session.write_tls(&mut wire) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes what these pieces have, as long as TCP has room for what waits already.
    ///
    /// # Safety
    /// The pieces may be read.
    pub(super) unsafe fn send(
        &mut self,
        socket: &Descriptor,
        pieces: &Pieces,
        more: bool,
    ) -> io::Result<usize> {
        self.make_room(socket)?;
        let mut sent = 0;
        loop {
            // SAFETY: the caller vouches for the pieces.
            let bytes = unsafe { pieces.copy_out(sent, &mut self.record) };
            let record = self.record.get(..bytes).unwrap_or_default();
            if record.is_empty() {
                break;
            }
            let taken = self.session.writer().write(record)?;
            sent += taken;
            if taken < bytes && (!self.flush(socket, more)? || taken == 0) {
                break;
            }
        }
        self.flush(socket, more)?;
        taken_or_later(sent)
    }

    /// Takes bytes, likewise.
    pub(super) fn send_bytes(&mut self, socket: &Descriptor, bytes: &[u8]) -> io::Result<usize> {
        self.make_room(socket)?;
        let sent = self.session.writer().write(bytes)?;
        self.flush(socket, false)?;
        taken_or_later(sent)
    }

    fn make_room(&mut self, socket: &Descriptor) -> io::Result<()> {
        self.begun = true;
        if self.failed || self.said_end {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.flush(socket, false)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Says that nothing more comes from here. True once that is with TCP.
    pub(super) fn finish(&mut self, socket: &Descriptor) -> bool {
        if !self.failed && !core::mem::replace(&mut self.said_end, true) {
            self.session.send_close_notify();
        }
        // One that is gone needs to be told no more.
        self.flush(socket, false).unwrap_or(true)
    }

    /// Reads into these pieces.
    ///
    /// # Safety
    /// The pieces may be written.
    pub(super) unsafe fn receive(
        &mut self,
        socket: &Descriptor,
        pieces: &Pieces,
    ) -> io::Result<usize> {
        let room = pieces.bytes();
        self.read(socket, room, |at, bytes| {
            // SAFETY: the caller vouches for the pieces.
            unsafe { pieces.copy_in(at, bytes) }
        })
    }

    /// Reads into these bytes.
    pub(super) fn receive_bytes(
        &mut self,
        socket: &Descriptor,
        to: &mut [u8],
    ) -> io::Result<usize> {
        self.read(socket, to.len(), |at, bytes| {
            if let Some(to) = to.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        })
    }

    /// Has `put` take what came, at most `room` bytes, each with its place among them; 0 when the
    /// other end has said that it sends nothing more. What is wrong behind that is told by the next
    /// call.
    fn read(
        &mut self,
        socket: &Descriptor,
        room: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<usize> {
        self.begun = true;
        self.dry = false;
        let (mut got, mut calls) = (0, CALLS);
        while got < room {
            let mut reader = self.session.reader();
            match reader.fill_buf() {
                // It said its end, which is found again.
                Ok([]) => {
                    self.dry = false;
                    break;
                }
                Ok(bytes) => {
                    let bytes = bytes.get(..room - got).unwrap_or(bytes);
                    put(got, bytes);
                    let taken = bytes.len();
                    reader.consume(taken);
                    got += taken;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return taken_or(got, error),
            }
            if self.dry && self.left.is_empty() && got > 0 {
                break;
            }
            if let Err(error) = self.advance(socket, &mut calls) {
                return taken_or(got, error);
            }
        }
        Ok(got)
    }

    /// Decrypts a part of what came, or has more come.
    fn advance(&mut self, socket: &Descriptor, calls: &mut u32) -> io::Result<()> {
        if self.failed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if self.left.is_empty() {
            *calls = calls.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
            match super::socket::receive_into(socket, &mut self.came) {
                Ok(got) => {
                    // An end is found again by whoever asks again.
                    self.dry = 0 < got && got < self.came.len();
                    self.left = 0..got;
                }
                Err(error) => {
                    self.dry = error.kind() == io::ErrorKind::WouldBlock;
                    return Err(error);
                }
            }
        }
        let mut input = self.came.get(self.left.clone()).unwrap_or_default();
        let read = self.session.read_tls(&mut input);
        self.left.start = self.left.end - input.len();
        let state = read.and_then(|_| {
            let state = self.session.process_new_packets();
            state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        });
        // If TCP is gone that is read, too.
        let _gone = self.flush(socket, false);
        state.map(|_| ()).map_err(|error| self.fail(socket, &error))
    }

    /// The other end breaks TLS, or one of the two refuses the other. An alert that says so went out.
    #[cold]
    fn fail(&mut self, socket: &Descriptor, error: &io::Error) -> io::Error {
        self.failed = true;
        self.dry = false;
        let far = SockRef::from(socket).peer_addr().ok();
        let far = far.and_then(|far| far.as_socket());
        let far = far.map_or_else(|| "a host that is gone".into(), |far| far.to_string());
        match &self.session {
            Connection::Client(_) => {
                let subject = format!("TLS with {far}");
                let line = format_args!("{error}");
                self.log_limiter.log(log::Level::Warn, &subject, line);
            }
            // Anybody can ask.
            Connection::Server(_) => log::debug!("TLS with {far}: {error}"),
        }
        io::ErrorKind::InvalidData.into()
    }
}

fn taken_or_later(taken: usize) -> io::Result<usize> {
    taken_or(taken, io::ErrorKind::WouldBlock.into())
}

fn taken_or(taken: usize, error: io::Error) -> io::Result<usize> {
    match taken {
        0 => Err(error),
        taken => Ok(taken),
    }
}

/// The socket, as TLS writes to it.
struct Wire<'a> {
    socket: SockRef<'a>,
    flags: libc::c_int,
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.send_with_flags(bytes, self.flags)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send_vectored_with_flags(bytes, self.flags)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
