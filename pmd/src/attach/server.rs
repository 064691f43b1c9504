//! The datapath process: opens NICs, polls them on pinned cores, serves applications that attach, and reports its
//! status.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::geteuid;
use pmd_port::thread;
use vi_core::memory::client_mapping::FileId;
use vi_core::sync::{AtomicBool, Ordering};
use vi_core::sys;
use vi_types::ResourceError;

use super::accounts::UserAccounts;
use super::client_slots::ClientSlots;
use super::cores::Core;
use super::limiters::{
    self, PendingConnection, PendingConnections, PendingLimits, UserRateLimiters,
};
use super::mapped_files::MappedFiles;
use super::message::{Reply, Request, VERSION};
use super::releases::{self, Releases};
use super::reservations::Reservations;
use super::session::{CountGuard, Session};
use crate::attach::long_reply::send_parts;
use crate::config::{Config, NicConfig, ProcessConfig, admit, socket_of};
use crate::device::Device;
use crate::nic;
use crate::open::{self, OpenError};
use capture::Captures;
use socket_file::SocketFile;
use vi_core::control_socket::{Listener, Peer, Socket};

mod attach;
mod capture;
mod socket_file;
mod status;

pub use status::{ApplicationStatus, CoreStatus, NicStatus, QuotaUse, Status, ViStatus};

/// Limit of the wait for the first request of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Average limit of the status queries of a user: each takes time of the pollers.
const STATUS_QUERIES_PER_SECOND: u32 = 50;
/// Stack size of a thread that serves a connection.
const STACK_BYTES: usize = 256 * 1024;

/// Attached applications by the keys of their call connections.
type Sessions = HashMap<[u8; 16], Arc<Session>>;

/// A NIC of the process.
struct ServedNic {
    config: NicConfig,
    device: &'static Device,
    /// The process's own NIC handle, which keeps the NIC up.
    nic: Mutex<u64>,
    core: Arc<Core>,
}

/// Formats the reply to a status query.
type StatusHandler = dyn Fn(&Server) -> Vec<u8> + Send + Sync;

/// The function of a thread of the process.
type Run = dyn FnOnce(&Arc<Server>) + Send;

/// A running datapath process.
pub struct Server {
    config: Config,
    process: Mutex<ProcessConfig>,
    nics: Vec<ServedNic>,
    cores: Vec<Arc<Core>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    listener: Listener,
    /// `None` once the process is stopped.
    socket_file: Mutex<Option<SocketFile>>,
    sessions: Mutex<Sessions>,
    pending: Arc<PendingConnections>,
    /// Rejected connections whose close may block.
    releases: Arc<Releases>,
    slots: Arc<ClientSlots>,
    /// Mapped files of applications.
    files: Arc<MappedFiles>,
    /// What the applications of each user have together.
    accounts: Arc<UserAccounts>,
    /// Discriminators reserved for users.
    reservations: Arc<Reservations>,
    /// Limits of the users' calls.
    calls: UserRateLimiters,
    /// Limits of the users' status queries.
    status_queries: UserRateLimiters,
    /// Notified when a session ends.
    ended: Condvar,
    captures: Captures,
    stopping: AtomicBool,
    status_handler: Box<StatusHandler>,
}

impl Server {
    /// Opens the NICs of a configuration, which must have a table `process`, starts the pollers and listens for
    /// applications. `status_handler` formats replies to status queries.
    ///
    /// # Errors
    /// A NIC, a core or the socket cannot be used; the text names cause and remedy.
    pub fn start(
        config: Config,
        status_handler: impl Fn(&Self) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, OpenError> {
        let process = config
            .process
            .clone()
            .ok_or_else(|| OpenError::new("the configuration has no table [process]: add one"))?;
        limiters::set_max_log_lines_per_second(process.max_log_lines_per_second);
        sys::with_signals_blocked(pmd_port::deferred_close::start)
            .map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))?;
        let no_event = |e| OpenError::new(format!("eventfd: {e}"));
        let files = MappedFiles::new().map_err(no_event)?;
        let spare = sys::EventFd::new().map_err(no_event)?;
        let (listener, socket_file) = socket_file::listen(&socket_of(&process))?;
        let mut cores: Vec<Arc<Core>> = Vec::new();
        let mut threads = Vec::new();
        let mut nics = Vec::new();
        let opened = config.nic.iter().try_for_each(|nic| {
            let core = core_for(nic, &process, &mut cores, &mut threads)?;
            let (device, handle) = open::open_served(nic, |device| core.add(device))
                .map_err(|e| OpenError::new(format!("NIC {}: {e}", nic.name)))?;
            nics.push(ServedNic {
                config: nic.clone(),
                device,
                nic: Mutex::new(handle),
                core,
            });
            Ok(())
        });
        if let Err(error) = opened {
            close_nics(&nics, &cores, threads);
            return Err(error);
        }
        let server = Arc::new(Self {
            config,
            process: Mutex::new(process),
            nics,
            cores,
            threads: Mutex::new(threads),
            listener,
            socket_file: Mutex::new(Some(socket_file)),
            sessions: Mutex::new(HashMap::new()),
            pending: Arc::default(),
            releases: Arc::new(Releases::new(releases::INTERVAL)),
            slots: Arc::default(),
            files: Arc::new(files),
            accounts: Arc::default(),
            reservations: Arc::default(),
            calls: UserRateLimiters::default(),
            status_queries: UserRateLimiters::default(),
            ended: Condvar::new(),
            captures: Captures::default(),
            stopping: AtomicBool::new(false),
            status_handler: Box::new(status_handler),
        });
        server.accounts.read_subordinate_users();
        let accept = move |server: &Arc<Self>| server.accept(spare);
        let unmap = |server: &Arc<Self>| {
            let is_stopping = || server.stopping.load(Ordering::SeqCst);
            server.files.unmap_ended(is_stopping);
        };
        let threads: [(&str, Box<Run>); 2] =
            [("attach", Box::new(accept)), ("unmap", Box::new(unmap))];
        for (name, run) in threads {
            let thread = std::thread::Builder::new().name(name.to_owned());
            let running = Arc::clone(&server);
            match thread.spawn(move || run(&running)) {
                Ok(thread) => server.threads().push(thread),
                Err(error) => {
                    server.stop();
                    let text = format!("cannot start a thread: {error}");
                    return Err(OpenError::new(text));
                }
            }
        }
        Ok(server)
    }

    /// Applies the settings that can change at run time: permissions to attach, limits, and quotas of later
    /// attachments. Returns the other settings that differ from those at the start: they take effect after a restart.
    pub fn reload(&self, config: &Config) -> Vec<String> {
        let mut later = Vec::new();
        let (Some(new), Some(old)) = (&config.process, &self.config.process) else {
            later.push("missing table [process]".to_owned());
            return later;
        };
        for (key, differs) in [
            ("socket", new.socket != old.socket),
            ("metrics", new.metrics != old.metrics),
            ("idle", new.idle != old.idle),
            ("spin_us", new.spin_us != old.spin_us),
        ] {
            if differs {
                later.push(format!("{key} of [process]"));
            }
        }
        if config.nic != self.config.nic {
            later.push("[[nic]]".to_owned());
        }
        if config.alias != self.config.alias {
            later.push("[alias]".to_owned());
        }
        limiters::set_max_log_lines_per_second(new.max_log_lines_per_second);
        self.accounts.read_subordinate_users();
        *self.process() = ProcessConfig {
            socket: old.socket.clone(),
            metrics: old.metrics,
            idle: old.idle,
            spin_us: old.spin_us,
            ..new.clone()
        };
        later
    }

    /// Stops the process: rejects further applications, disconnects the VIs of all applications, and closes the NICs,
    /// which leave their networks.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.listener.shut_down();
        self.releases.stop();
        self.files.wake();
        self.captures.wait_for_end(TIMEOUT);
        let sessions: Vec<_> = self
            .sessions()
            .drain()
            .map(|(_, session)| session)
            .collect();
        for session in sessions {
            session.end();
            session.attach_socket.shut_down();
        }
        let threads = core::mem::take(&mut *self.threads());
        close_nics(&self.nics, &self.cores, threads);
        let socket_file = self.socket_file.lock();
        drop(socket_file.unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Returns the status of cores, NICs, applications and VIs.
    pub fn status(&self) -> Status {
        let sessions: Vec<_> = self.sessions().values().cloned().collect();
        status::of(&self.nics, &self.cores, &sessions)
    }

    fn process(&self) -> MutexGuard<'_, ProcessConfig> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections until the process stops. If no descriptor is left, closes the spare one, accepts one more
    /// connection and rejects it with the reason.
    fn accept(self: &Arc<Self>, spare: sys::EventFd) {
        let mut spare = Some(spare);
        while !self.stopping.load(Ordering::SeqCst) {
            let mut accepted = self.listener.accept();
            if accepted.as_ref().is_err_and(sys::is_out_of_descriptors) && spare.take().is_some() {
                accepted = self.listener.accept();
            }
            let mut spare_error = None;
            if spare.is_none() {
                match sys::EventFd::new() {
                    Ok(event) => spare = Some(event),
                    Err(error) => spare_error = Some(error),
                }
            }
            let socket = match accepted.and_then(Socket::close_unlocked_on_drop) {
                Ok(socket) => socket,
                Err(_) if self.stopping.load(Ordering::SeqCst) => return,
                Err(error) => {
                    let line = format_args!("control socket: accept failed: {error}");
                    limiters::log_limited(log::Level::Warn, line);
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            if let Some(error) = spare_error {
                self.reject_before_request(socket, out_of_descriptors(&error));
                continue;
            }
            // Limits connections without a request: each has a thread.
            let limits = PendingLimits::from(&*self.process());
            let peer = socket.peer().map_err(|error| error.to_string());
            let add = |peer: Peer| {
                let uid = self.accounts.counted_as(peer.uid);
                self.pending.add(Peer { uid, ..peer }, limits)
            };
            match peer.and_then(add) {
                Ok(pending) => self.serve_on_thread(pending, socket),
                Err(why) => self.reject_before_request(socket, why),
            }
        }
    }

    /// Serves a connection on its own thread, or rejects it.
    fn serve_on_thread(self: &Arc<Self>, pending: PendingConnection, socket: Socket) {
        // Shared, since a thread that cannot start does not return its closure.
        let shared = Arc::new(Mutex::new(Some(socket)));
        let take = |shared: &Mutex<Option<Socket>>| {
            let mut socket = shared.lock().unwrap_or_else(PoisonError::into_inner);
            socket.take()
        };
        let serve = {
            let (server, shared) = (Arc::clone(self), Arc::clone(&shared));
            move || {
                let Some(socket) = take(&shared) else { return };
                if let Err(error) = server.serve_connection(pending, socket) {
                    log::debug!("control connection: closed: {error}");
                }
            }
        };
        let started = thread::start_with_stack("application".to_owned(), STACK_BYTES, serve);
        if let Err(error) = started
            && let Some(socket) = take(&shared)
        {
            let why = ResourceError::thread(&error);
            self.reject_before_request(socket, format!("fcvi-pmd: {why}"));
        }
    }

    /// Serves a connection from its first message on. It counts as pending until its socket is closed: parameters are
    /// dropped in reverse order.
    fn serve_connection(&self, pending: PendingConnection, socket: Socket) -> io::Result<()> {
        socket.set_timeout(Some(TIMEOUT))?;
        let peer = socket.peer()?;
        let Some((request, fds)) = socket.receive::<Request>()? else {
            return Ok(());
        };
        if !fds.is_empty() {
            return Err(io::Error::other("unexpected file descriptors"));
        }
        let (Request::Attach { version, .. }
        | Request::Join { version, .. }
        | Request::QueryStatus { version }
        | Request::Capture { version, .. }
        | Request::Free { version, .. }) = request
        else {
            return self.refuse(
                &socket,
                "this request cannot be the first one of a connection".to_owned(),
            );
        };
        if version != VERSION {
            let text =
                "library and fcvi-pmd are of different releases: install the same release of both";
            return self.refuse(&socket, text.to_owned());
        }
        match request {
            Request::Attach { device, .. } => self.attach(socket, peer, &device, pending),
            Request::Join { key, .. } => {
                let session = self.sessions().get(&key).cloned();
                match session.filter(|session| session.peer == peer) {
                    Some(session) => {
                        drop(pending);
                        self.join(&session, socket)
                    }
                    None => self.refuse(&socket, "no attached application has this key".to_owned()),
                }
            }
            Request::Capture { parameters, .. } => {
                self.capture(&Arc::new(socket), peer, &parameters)
            }
            Request::Free { device, file, .. } => {
                if let Some(served) = self.nic(&device) {
                    let (device, inode) = file;
                    let file = FileId { device, inode };
                    self.files.free((peer, served.device.shared.number), file);
                }
                socket.send(&Reply::Done, &[])
            }
            _ => self.reply_status(&socket, peer),
        }
    }

    /// The NIC with this device name or alias.
    fn nic(&self, name: &str) -> Option<&ServedNic> {
        let name = &self.config.nic(name)?.name;
        self.nics.iter().find(|served| served.config.name == *name)
    }

    fn unknown_nic(&self, name: &str) -> Reply {
        let known = self.nics.iter().map(|served| served.config.name.as_str());
        let known = known.collect::<Vec<_>>().join(", ");
        Reply::UnknownNic(format!("no NIC is called {name:?}; there are {known}"))
    }

    /// Replies to a status query.
    fn reply_status(&self, socket: &Socket, peer: Peer) -> io::Result<()> {
        let process = self.process().clone();
        let may_attach = || {
            socket
                .peer_groups()
                .is_ok_and(|gids| admit(&process, peer.uid, &gids).is_ok())
        };
        let uid = peer.uid;
        if uid != 0 && uid != geteuid().as_raw() && !may_attach() {
            let text =
                "only root, the user of fcvi-pmd and users that may attach may query the status";
            return self.refuse(socket, format!("user {uid}: {text}"));
        }
        let limiter = self.status_queries.of(self.accounts.counted_as(uid));
        if limiter.wait(STATUS_QUERIES_PER_SECOND, TIMEOUT).is_err() {
            return self.refuse(socket, format!("user {uid}: too many status queries"));
        }
        send_parts(socket, &(self.status_handler)(self))
    }

    fn refuse(&self, socket: &Socket, why: String) -> io::Result<()> {
        self.reject(socket, Reply::Refused(why))
    }

    /// Logs and sends a reply that rejects a connection.
    fn reject(&self, socket: &Socket, reply: Reply) -> io::Result<()> {
        if let Reply::Refused(why) = &reply {
            let line = format_args!("control connection: rejected: {why}");
            limiters::log_of_user(self.user_of(socket), log::Level::Warn, line);
        }
        socket.send(&reply, &[])
    }

    /// Rejects a connection without reading its request.
    fn reject_before_request(&self, socket: Socket, why: String) {
        if let Err(error) = self.refuse(&socket, why) {
            log::debug!("control connection: closed: {error}");
        }
        self.releases.close(self.user_of(&socket), socket);
    }

    /// The user as which the peer of a connection counts.
    fn user_of(&self, socket: &Socket) -> libc::uid_t {
        let uid = socket.peer().map_or(libc::uid_t::MAX, |peer| peer.uid);
        self.accounts.counted_as(uid)
    }

    /// Serves a call connection of an attached application.
    fn join(&self, session: &Arc<Session>, socket: Socket) -> io::Result<()> {
        let limit = session.quota.max_calls;
        let call = CountGuard::new(&session.calls);
        if call.before >= limit {
            let text =
                format!("max_calls = {limit} calls are in progress: raise it in [process.quota]");
            return self.refuse(&socket, text);
        }
        socket.set_timeout(None)?;
        socket.take_descriptors();
        session.serve_calls(socket)
    }
}

/// The reason of a rejection because this process has no file descriptor left.
pub(super) fn out_of_descriptors(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            let limit = sys::soft_descriptor_limit();
            let limit = limit.map_or_else(|error| error.to_string(), |n| n.to_string());
            format!(
                "fcvi-pmd has no file descriptor left: RLIMIT_NOFILE = {limit}: raise it (LimitNOFILE= of its \
                 unit), or lower max_applications or max_calls"
            )
        }
        Some(libc::ENFILE) => "fcvi-pmd: the system has no file left: raise fs.file-max".to_owned(),
        _ => format!("fcvi-pmd gets no file descriptor: {error}"),
    }
}

/// Checks that this process could listen at a path, and removes what it created for that.
pub(crate) fn check_socket(path: &Path) -> Result<(), OpenError> {
    let is_missing = |directory: &&Path| !directory.exists();
    let missing: Vec<_> = path.ancestors().skip(1).take_while(is_missing).collect();
    let listened = socket_file::listen(path).map(drop);
    for directory in missing {
        if let Err(error) = std::fs::remove_dir(directory) {
            // Another program uses it, or it could not be created.
            log::debug!("{}: {error}", directory.display());
        }
    }
    listened
}

/// Returns the core of a NIC; starts its thread for the first NIC.
fn core_for(
    nic: &NicConfig,
    process: &ProcessConfig,
    cores: &mut Vec<Arc<Core>>,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<Arc<Core>, OpenError> {
    let last = || core_affinity::get_core_ids().and_then(|ids| ids.last().map(|id| id.id));
    let number = nic.progress.core().or_else(last).unwrap_or(0);
    if let Some(core) = cores.iter().find(|core| core.number == number) {
        return Ok(Arc::clone(core));
    }
    let core = Core::new(number, process)?;
    threads.push(core.start()?);
    cores.push(Arc::clone(&core));
    Ok(core)
}

/// Closes all NICs and ends all threads.
fn close_nics(nics: &[ServedNic], cores: &[Arc<Core>], threads: Vec<JoinHandle<()>>) {
    let close = |served: &ServedNic| {
        // The NIC leaves its network while its core still polls.
        let nic = *served.nic.lock().unwrap_or_else(PoisonError::into_inner);
        let _was_open = nic::close(nic);
    };
    // Concurrently: peers can delay the close of each NIC up to a timeout.
    std::thread::scope(|scope| {
        for served in nics {
            let builder = std::thread::Builder::new().name("close".to_owned());
            if builder.spawn_scoped(scope, || close(served)).is_err() {
                close(served);
            }
        }
    });
    for core in cores {
        core.stop();
    }
    for thread in threads {
        if thread.join().is_err() {
            log::error!("a thread panicked");
        }
    }
}

#[cfg(test)]
mod tests;
