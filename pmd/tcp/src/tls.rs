//! TLS on a TCP socket: encrypts sent data, decrypts received data into its destination. The handshake
//! progresses with each read and write.

use std::io::{self, BufRead, IoSlice, Write};
use std::net::IpAddr;

use pmd_port::fork::Descriptor;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use socket2::SockRef;
use vi_core::log_limiter::LogLimiter;
use vi_core::memory::copy;

use super::credentials::{Credentials, is_valid_for};
use super::socket::SEND_BUFFER_BYTES;
use vitcp_lite::transfer::MemoryRanges;

/// Bytes of the buffer for received data that is not decrypted.
const CIPHERTEXT_BYTES: usize = 32 << 10;
/// Bytes of the buffer in which the plaintext of a record is gathered.
const RECORD_BYTES: usize = 16 << 10;
/// Maximum system calls of one read.
const MAX_READ_CALLS: u32 = 8;
/// Number of decrypted records after which a read ends.
const MAX_READ_RECORDS: u32 = 256;
/// Bytes of the header of a record: type, version, length.
const RECORD_HEADER_BYTES: usize = 5;

/// A TLS session on a non-blocking TCP socket.
pub(super) struct TlsSession {
    session: Connection,
    record: Box<[u8]>,
    ciphertext: Box<[u8]>,
    /// The range of it that is not decrypted.
    undecrypted: core::ops::Range<usize>,
    /// A read or write has started the handshake; before, TCP may not be connected.
    started: bool,
    /// The last read of the socket returned all that it had.
    socket_drained: bool,
    /// The handshake may process received data.
    handshake_permitted: bool,
    records: RecordCounter,
    /// The peer violated TLS, or one side refused the other.
    failed: bool,
    close_notify_sent: bool,
    log_limiter: &'static LogLimiter,
}

impl core::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Neither keys nor data.
        f.debug_struct("TlsSession").finish_non_exhaustive()
    }
}

/// Counts the records of a stream.
#[derive(Default)]
struct RecordCounter {
    header: [u8; RECORD_HEADER_BYTES],
    header_bytes: usize,
    /// Bytes of the current record that follow.
    left: usize,
    /// Records begun since the last [`TlsSession::take_records`].
    count: u32,
}

impl RecordCounter {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let in_record = self.left.min(bytes.len());
            self.left -= in_record;
            bytes = &bytes[in_record..];
            if let Some((first, rest)) = bytes.split_first() {
                self.header[self.header_bytes] = *first;
                self.header_bytes += 1;
                bytes = rest;
            }
            if self.header_bytes == RECORD_HEADER_BYTES {
                self.header_bytes = 0;
                let [.., high, low] = self.header;
                self.left = usize::from(u16::from_be_bytes([high, low]));
                self.count += 1;
            }
        }
    }
}

/// Copies bytes out of memory ranges from `at` on; returns the number copied.
///
/// # Safety
/// The ranges may be read.
unsafe fn copy_out(ranges: &MemoryRanges, at: usize, to: &mut [u8]) -> usize {
    let mut copied = 0;
    ranges.walk(at, to.len(), |from, range| {
        copied = range.end;
        if let Some(to) = to.get_mut(range) {
            // SAFETY: part of a range, by the caller's contract.
            unsafe { copy::read(from, to) };
        }
    });
    copied
}

/// Copies bytes into memory ranges from `at` on; excess bytes are ignored.
///
/// # Safety
/// The ranges may be written.
unsafe fn copy_in(ranges: &MemoryRanges, at: usize, bytes: &[u8]) {
    ranges.walk(at, bytes.len(), |to, range| {
        if let Some(from) = bytes.get(range) {
            // SAFETY: part of a range, by the caller's contract.
            unsafe { copy::write(to, from) };
        }
    });
}

impl TlsSession {
    /// Creates the client's session. The server's certificate must be valid for `peer`.
    pub(super) fn client(credentials: &Credentials, peer: IpAddr) -> io::Result<Box<Self>> {
        let name = ServerName::IpAddress(peer.into());
        let session = ClientConnection::new(credentials.client.clone(), name);
        let session = session.map_err(io::Error::other)?;
        Ok(Self::new(session, credentials.log_limiter))
    }

    /// Creates the server's session.
    pub(super) fn server(credentials: &Credentials) -> io::Result<Box<Self>> {
        let session = ServerConnection::new(credentials.server.clone());
        let session = session.map_err(io::Error::other)?;
        Ok(Self::new(session, credentials.log_limiter))
    }

    fn new(session: impl Into<Connection>, log_limiter: &'static LogLimiter) -> Box<Self> {
        let mut session = session.into();
        session.set_buffer_limit(Some(SEND_BUFFER_BYTES));
        Box::new(Self {
            session,
            record: vec![0; RECORD_BYTES].into_boxed_slice(),
            ciphertext: vec![0; CIPHERTEXT_BYTES].into_boxed_slice(),
            undecrypted: 0..0,
            started: false,
            socket_drained: false,
            handshake_permitted: false,
            records: RecordCounter::default(),
            failed: false,
            close_notify_sent: false,
            log_limiter,
        })
    }

    /// Checks whether the handshake is complete.
    pub(super) fn is_established(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// Lets the handshake process received data from now on, or not. By default it does not.
    pub(super) fn permit_handshake(&mut self, permitted: bool) {
        self.handshake_permitted = permitted;
    }

    /// Returns the number of records since the last call.
    #[inline]
    pub(super) fn take_records(&mut self) -> u32 {
        core::mem::take(&mut self.records.count)
    }

    /// Checks whether the certificate of the peer is valid for this address, after the handshake.
    pub(super) fn is_certified_for(&self, address: IpAddr) -> bool {
        let certificates = self.session.peer_certificates();
        let certificate = certificates.and_then(<[_]>::first);
        certificate.is_some_and(|certificate| is_valid_for(certificate, address))
    }

    /// Checks whether more data may be readable than the last read returned.
    pub(super) fn has_more(&self) -> bool {
        !self.socket_drained
    }

    /// Checks whether encrypted data waits for space in TCP.
    pub(super) fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    /// Writes encrypted data as far as TCP has space. Returns true if none is left. Does nothing before
    /// the first read or write, as TCP may not be connected.
    pub(super) fn flush(&mut self, socket: &Descriptor, more: bool) -> io::Result<bool> {
        let mut wire = Wire {
            socket: SockRef::from(socket),
            flags: libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 },
        };
        while self.started && self.session.wants_write() {
            match self.session.write_tls(&mut wire) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Encrypts and sends these memory ranges; returns the bytes taken. Takes nothing while earlier data
    /// waits for space in TCP.
    ///
    /// # Safety
    /// The memory may be read.
    pub(super) unsafe fn send(
        &mut self,
        socket: &Descriptor,
        ranges: &MemoryRanges,
        more: bool,
    ) -> io::Result<usize> {
        self.prepare_send(socket)?;
        let mut sent = 0;
        loop {
            // SAFETY: the caller vouches for the ranges.
            let bytes = unsafe { copy_out(ranges, sent, &mut self.record) };
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
        count_or_would_block(sent)
    }

    /// Encrypts and sends bytes, likewise.
    pub(super) fn send_bytes(&mut self, socket: &Descriptor, bytes: &[u8]) -> io::Result<usize> {
        self.prepare_send(socket)?;
        let sent = self.session.writer().write(bytes)?;
        self.flush(socket, false)?;
        count_or_would_block(sent)
    }

    fn prepare_send(&mut self, socket: &Descriptor) -> io::Result<()> {
        self.started = true;
        if self.failed || self.close_notify_sent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.flush(socket, false)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends close_notify. Returns true once TCP has taken it.
    pub(super) fn finish(&mut self, socket: &Descriptor) -> bool {
        if !self.failed && !core::mem::replace(&mut self.close_notify_sent, true) {
            self.session.send_close_notify();
        }
        // On a broken connection there is nothing left to send.
        self.flush(socket, false).unwrap_or(true)
    }

    /// Decrypts received data into these memory ranges.
    ///
    /// # Safety
    /// The memory may be written.
    pub(super) unsafe fn receive(
        &mut self,
        socket: &Descriptor,
        ranges: &MemoryRanges,
    ) -> io::Result<usize> {
        let limit_bytes = ranges.bytes();
        self.read(socket, limit_bytes, |at, bytes| {
            // SAFETY: the caller vouches for the ranges.
            unsafe { copy_in(ranges, at, bytes) }
        })
    }

    /// Decrypts received data into `to`.
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

    /// Passes received data to `put` with its offset, at most `limit_bytes`; returns the bytes, 0 after
    /// the peer's close_notify. An error after received data is returned by the next call.
    fn read(
        &mut self,
        socket: &Descriptor,
        limit_bytes: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<usize> {
        self.started = true;
        self.socket_drained = false;
        let (mut got, mut calls) = (0, MAX_READ_CALLS);
        let records_before = self.records.count;
        while got < limit_bytes {
            let mut reader = self.session.reader();
            match reader.fill_buf() {
                // The peer's close_notify; the next call finds it again.
                Ok([]) => {
                    self.socket_drained = false;
                    break;
                }
                Ok(bytes) => {
                    let bytes = bytes.get(..limit_bytes - got).unwrap_or(bytes);
                    put(got, bytes);
                    let taken = bytes.len();
                    reader.consume(taken);
                    got += taken;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return count_or(got, error),
            }
            if self.socket_drained && self.undecrypted.is_empty() && got > 0 {
                break;
            }
            if self.records.count - records_before >= MAX_READ_RECORDS {
                return count_or(got, io::ErrorKind::Interrupted.into());
            }
            if let Err(error) = self.advance(socket, &mut calls) {
                return count_or(got, error);
            }
        }
        Ok(got)
    }

    /// Decrypts buffered data, or reads more from the socket.
    fn advance(&mut self, socket: &Descriptor, calls: &mut u32) -> io::Result<()> {
        if self.failed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if self.undecrypted.is_empty() {
            *calls = calls.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
            match super::socket::receive_into(socket, &mut self.ciphertext) {
                Ok(got) => {
                    // The next read finds the end of the stream again.
                    self.socket_drained = 0 < got && got < self.ciphertext.len();
                    self.undecrypted = 0..got;
                }
                Err(error) => {
                    self.socket_drained = error.kind() == io::ErrorKind::WouldBlock;
                    return Err(error);
                }
            }
        }
        if !self.handshake_permitted && self.session.is_handshaking() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let ciphertext = self
            .ciphertext
            .get(self.undecrypted.clone())
            .unwrap_or_default();
        let mut input = ciphertext;
        let read = self.session.read_tls(&mut input);
        self.records
            .add(&ciphertext[..ciphertext.len() - input.len()]);
        self.undecrypted.start = self.undecrypted.end - input.len();
        let state = read.and_then(|_| {
            let state = self.session.process_new_packets();
            state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        });
        // A broken connection is reported by the next read.
        let _ignored = self.flush(socket, false);
        state.map(|_| ()).map_err(|error| self.fail(socket, &error))
    }

    /// Marks the session as failed and logs the error. The alert is already sent.
    #[cold]
    fn fail(&mut self, socket: &Descriptor, error: &io::Error) -> io::Error {
        self.failed = true;
        self.socket_drained = false;
        let remote = SockRef::from(socket).peer_addr().ok();
        let remote = remote.and_then(|remote| remote.as_socket());
        let remote = remote.map_or_else(|| "a closed socket".into(), |remote| remote.to_string());
        match &self.session {
            Connection::Client(_) => {
                let subject = format!("TLS with {remote}");
                let line = format_args!("{error}");
                self.log_limiter.log(log::Level::Warn, &subject, line);
            }
            // Any host can connect.
            Connection::Server(_) => log::debug!("TLS with {remote}: {error}"),
        }
        io::ErrorKind::InvalidData.into()
    }
}

fn count_or_would_block(taken: usize) -> io::Result<usize> {
    count_or(taken, io::ErrorKind::WouldBlock.into())
}

fn count_or(taken: usize, error: io::Error) -> io::Result<usize> {
    match taken {
        0 => Err(error),
        taken => Ok(taken),
    }
}

/// A writer of encrypted data to the socket.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_wherever_the_stream_is_split() {
        let record = |bytes: u16| {
            let mut record = vec![0x17, 3, 3];
            record.extend(bytes.to_be_bytes());
            record.resize(RECORD_HEADER_BYTES + usize::from(bytes), 0xFF);
            record
        };
        let stream = [record(1), record(0), record(300), record(7)].concat();
        for piece in 1..stream.len() {
            let mut records = RecordCounter::default();
            stream.chunks(piece).for_each(|bytes| records.add(bytes));
            assert_eq!(records.count, 4);
            assert_eq!((records.header_bytes, records.left), (0, 0));
        }
    }
}
