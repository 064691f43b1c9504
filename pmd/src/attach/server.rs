//! The datapath process: NICs opened and polled on pinned cores, applications that attach, and
//! what there is to see.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::geteuid;
use pmd_port::thread;

use super::cores::Core;
use super::doors::{self, Doors, InDoor, MostPending, Paces};
use super::mapped_files::MappedFiles;
use super::message::{Reply, Request, VERSION};
use super::places::Places;
use super::reservations::Reservations;
use super::session::{Counted, Session};
use super::socket::{Listener, Peer, Socket, send_parts};
use crate::config::{Config, NicConfig, ProcessConfig};
use crate::device::{self, Device};
use crate::memory::mapped::FileId;
use crate::nic;
use crate::open::OpenError;
use crate::resource_error::ResourceError;
use crate::sync::{AtomicBool, Ordering};
use crate::sys;
use address::Address;
use capture::Captures;

mod address;
mod arrival;
mod capture;
mod status;

pub use status::{ApplicationStatus, CoreStatus, NicStatus, QuotaUse, Status, ViStatus};

/// Who connects says within so long what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// Operators of one user are answered so often in a second, on average: each answer takes turns
/// of the pollers.
const LOOKS_PER_SECOND: u32 = 50;
/// Stack of a thread that serves an application.
const STACK_BYTES: usize = 256 * 1024;

/// Applications that are attached, by the keys of their conversations.
type Sessions = HashMap<[u8; 16], Arc<Session>>;

/// A NIC of the process.
struct Served {
    config: NicConfig,
    device: &'static Device,
    /// The process's own opening, which keeps it up.
    nic: Mutex<u64>,
    core: Arc<Core>,
}

/// What an operator's question is answered with.
type Look = dyn Fn(&Server) -> Vec<u8> + Send + Sync;

/// What a thread of the process runs.
type Run = dyn FnOnce(&Arc<Server>) + Send;

/// A datapath process that runs.
pub struct Server {
    config: Config,
    process: Mutex<ProcessConfig>,
    nics: Vec<Served>,
    cores: Vec<Arc<Core>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    listener: Listener,
    /// While it listens.
    address: Mutex<Option<Address>>,
    sessions: Mutex<Sessions>,
    /// Conversations that have not begun.
    doors: Arc<Doors>,
    /// Those that are attached.
    places: Arc<Places>,
    /// Their files that are mapped.
    files: Arc<MappedFiles>,
    /// Discriminators that belong to users.
    reservations: Arc<Reservations>,
    /// How fast users make calls.
    calls: Paces,
    /// How often they look.
    looks: Paces,
    /// A session has ended.
    ended: Condvar,
    captures: Captures,
    over: AtomicBool,
    /// What an operator's question is answered with.
    look: Box<Look>,
}

impl Server {
    /// Opens the NICs of a configuration, which has a table `process`, starts the pollers and
    /// listens for applications. `look` answers operators who ask what there is.
    ///
    /// # Errors
    /// A NIC, a core or the socket cannot be used; says why and what to do.
    pub fn start(
        config: Config,
        look: impl Fn(&Self) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, OpenError> {
        let process = config
            .process
            .clone()
            .ok_or_else(|| OpenError::new("the configuration has no table [process]: add one"))?;
        doors::say_at_most(process.max_log_lines_per_second);
        sys::without_signals(pmd_port::release::start)
            .map_err(|e| OpenError::new(format!("cannot start a thread: {e}")))?;
        let no_event = |e| OpenError::new(format!("eventfd: {e}"));
        let files = MappedFiles::new().map_err(no_event)?;
        let spare = sys::Event::new().map_err(no_event)?;
        let (listener, address) = address::listen(&process.socket)?;
        let mut cores: Vec<Arc<Core>> = Vec::new();
        let mut threads = Vec::new();
        let mut nics = Vec::new();
        let opened = config.nics.iter().try_for_each(|nic| {
            let core = core_for(nic, &process, &mut cores, &mut threads)?;
            let (device, handle) = device::open_served(nic, |device| core.add(device))
                .map_err(|e| OpenError::new(format!("NIC {}: {e}", nic.name)))?;
            nics.push(Served {
                config: nic.clone(),
                device,
                nic: Mutex::new(handle),
                core,
            });
            Ok(())
        });
        if let Err(error) = opened {
            end_nics(&nics, &cores, threads);
            return Err(error);
        }
        let server = Arc::new(Self {
            config,
            process: Mutex::new(process),
            nics,
            cores,
            threads: Mutex::new(threads),
            listener,
            address: Mutex::new(Some(address)),
            sessions: Mutex::new(HashMap::new()),
            doors: Arc::default(),
            places: Arc::default(),
            files: Arc::new(files),
            reservations: Arc::default(),
            calls: Paces::default(),
            looks: Paces::default(),
            ended: Condvar::new(),
            captures: Captures::default(),
            over: AtomicBool::new(false),
            look: Box::new(look),
        });
        let accept = move |server: &Arc<Self>| server.accept(spare);
        let unmap = |server: &Arc<Self>| {
            let is_over = || server.over.load(Ordering::SeqCst);
            server.files.unmap_ended(is_over);
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

    /// Takes over what can change while it runs: who may attach, and with which quota from then
    /// on. Says what else is not as it was when the process was started, which a restart takes
    /// over.
    pub fn reload(&self, config: &Config) -> Vec<String> {
        let mut later = Vec::new();
        let (Some(new), Some(old)) = (&config.process, &self.config.process) else {
            later.push("[process] is not there any more".to_owned());
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
        if config.nics != self.config.nics {
            later.push("[[nic]]".to_owned());
        }
        if config.alias != self.config.alias {
            later.push("[alias]".to_owned());
        }
        doors::say_at_most(new.max_log_lines_per_second);
        *self.process() = ProcessConfig {
            socket: old.socket.clone(),
            metrics: old.metrics,
            idle: old.idle,
            spin_us: old.spin_us,
            ..new.clone()
        };
        later
    }

    /// Ends it: nobody attaches any more, every application's connections are ended, the NICs
    /// leave their networks.
    pub fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.listener.shut_down();
        self.files.wake();
        self.captures.wait_for_end(PATIENCE);
        let sessions: Vec<_> = self
            .sessions()
            .drain()
            .map(|(_, session)| session)
            .collect();
        for session in sessions {
            session.end();
            session.life.shut_down();
        }
        let threads = core::mem::take(&mut *self.threads());
        end_nics(&self.nics, &self.cores, threads);
        let address = self.address.lock();
        drop(address.unwrap_or_else(PoisonError::into_inner).take());
    }

    /// What there is, and what it does.
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

    /// Accepts applications until the process ends. Where no descriptor is left, the spare one is closed, so that one
    /// more application is accepted and gets the reason.
    fn accept(self: &Arc<Self>, spare: sys::Event) {
        let mut spare = Some(spare);
        while !self.over.load(Ordering::SeqCst) {
            let mut accepted = self.listener.accept();
            if accepted.as_ref().is_err_and(sys::is_out_of_descriptors) && spare.take().is_some() {
                accepted = self.listener.accept();
            }
            let mut lack = None;
            if spare.is_none() {
                match sys::Event::new() {
                    Ok(event) => spare = Some(event),
                    Err(error) => lack = Some(error),
                }
            }
            let socket = match accepted.and_then(Socket::close_apart_on_drop) {
                Ok(socket) => socket,
                Err(_) if self.over.load(Ordering::SeqCst) => return,
                Err(error) => {
                    doors::say(log::Level::Warn, format_args!("accept: {error}"));
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            if let Some(error) = lack {
                reject_before_request(socket, out_of_descriptors(&error));
                continue;
            }
            // A bound on conversations without a request: each has a thread.
            let most = MostPending::from(&*self.process());
            let entered = socket.peer().map_err(|error| error.to_string());
            match entered.and_then(|peer| self.doors.enter(peer, most)) {
                Ok(in_door) => self.serve_on_thread(in_door, socket),
                Err(why) => reject_before_request(socket, why),
            }
        }
    }

    /// Serves a conversation on a thread of its own, or rejects it.
    fn serve_on_thread(self: &Arc<Self>, in_door: InDoor, socket: Socket) {
        // Shared, since a thread that cannot start does not give back what it was to have.
        let waiting = Arc::new(Mutex::new(Some(socket)));
        let take = |waiting: &Mutex<Option<Socket>>| {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.take()
        };
        let converse = {
            let (server, waiting) = (Arc::clone(self), Arc::clone(&waiting));
            move || {
                let Some(socket) = take(&waiting) else { return };
                if let Err(error) = server.converse(in_door, socket) {
                    log::debug!("a conversation ends: {error}");
                }
            }
        };
        let started = thread::start_with_stack("application".to_owned(), STACK_BYTES, converse);
        if let Err(error) = started
            && let Some(socket) = take(&waiting)
        {
            let why = ResourceError::thread(&error);
            reject_before_request(socket, format!("fcvi-pmd: {why}"));
        }
    }

    /// One conversation, from its first message on. It counts as pending until its socket is closed: parameters are
    /// dropped in reverse order.
    fn converse(&self, in_door: InDoor, socket: Socket) -> io::Result<()> {
        socket.set_patience(Some(PATIENCE))?;
        let peer = socket.peer()?;
        let Some((request, fds)) = socket.receive::<Request>()? else {
            return Ok(());
        };
        if !fds.is_empty() {
            return Err(io::Error::other("descriptors that nobody asked for"));
        }
        let (Request::Attach { version, .. }
        | Request::Join { version, .. }
        | Request::Look { version }
        | Request::Capture { version, .. }
        | Request::Free { version, .. }) = request
        else {
            return refuse(&socket, "the conversation begins in the middle".to_owned());
        };
        if version != VERSION {
            let text = "library and fcvi-pmd are of different releases: install the same for both";
            return refuse(&socket, text.to_owned());
        }
        match request {
            Request::Attach { device, .. } => self.attach(socket, peer, &device, in_door),
            Request::Join { key, .. } => {
                let session = self.sessions().get(&key).cloned();
                match session.filter(|session| session.peer == peer) {
                    Some(session) => {
                        drop(in_door);
                        join(&session, socket)
                    }
                    None => refuse(&socket, "nobody is attached by this key".to_owned()),
                }
            }
            Request::Capture { order, .. } => self.capture(&socket, peer, &order),
            Request::Free { device, file, .. } => {
                if let Some(served) = self.named(&device) {
                    let (device, inode) = file;
                    let file = FileId { device, inode };
                    self.files.free((peer, served.device.number()), file);
                }
                socket.send(&Reply::Done, &[])
            }
            _ => self.answer_look(&socket, peer),
        }
    }

    /// The NIC of this device name.
    fn named(&self, name: &str) -> Option<&Served> {
        let name = &self.config.nic(name)?.name;
        self.nics.iter().find(|served| served.config.name == *name)
    }

    fn unknown_nic(&self, name: &str) -> Reply {
        let known = self.nics.iter().map(|served| served.config.name.as_str());
        let known = known.collect::<Vec<_>>().join(", ");
        Reply::UnknownNic(format!("no NIC is called {name:?}; there are {known}"))
    }

    /// An operator's question.
    fn answer_look(&self, socket: &Socket, peer: Peer) -> io::Result<()> {
        let process = self.process().clone();
        let may_attach = || {
            socket
                .peer_groups()
                .is_ok_and(|gids| process.admit(peer.uid, &gids).is_ok())
        };
        let uid = peer.uid;
        if uid != 0 && uid != geteuid().as_raw() && !may_attach() {
            let text = "only root, the user of fcvi-pmd and who may attach may look";
            return refuse(socket, format!("user {uid}: {text}"));
        }
        let pace = self.looks.of(uid);
        if pace.wait(LOOKS_PER_SECOND, PATIENCE).is_err() {
            return refuse(socket, format!("user {uid} looks too often"));
        }
        send_parts(socket, &(self.look)(self))
    }
}

fn refuse(socket: &Socket, why: String) -> io::Result<()> {
    turn_away(socket, Reply::Refused(why))
}

/// `reply` says why.
fn turn_away(socket: &Socket, reply: Reply) -> io::Result<()> {
    if let Reply::Refused(why) = &reply {
        let line = format_args!("an application is turned away: {why}");
        doors::say(log::Level::Warn, line);
    }
    socket.send(&reply, &[])
}

/// Rejects a connection without reading its request.
fn reject_before_request(socket: Socket, why: String) {
    if let Err(error) = refuse(&socket, why) {
        log::debug!("a conversation ends: {error}");
    }
    socket.shut_down();
    // Descriptors that it passed are released with it, which may take long.
    drop(socket.into_foreign());
}

/// Why an application is rejected where this process gets no descriptor.
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

/// Another thread of an application makes calls.
fn join(session: &Arc<Session>, socket: Socket) -> io::Result<()> {
    let most = session.quota.max_calls;
    let call = Counted::one(&session.calls);
    if call.before >= most {
        let text = format!("max_calls = {most} calls are under way: raise it in [process.quota]");
        return refuse(&socket, text);
    }
    socket.set_patience(None)?;
    socket.take_descriptors();
    session.take_calls(socket)
}

/// Checks that this process could listen at a path, and leaves nothing behind.
pub(crate) fn check_socket(path: &Path) -> Result<(), OpenError> {
    let is_missing = |directory: &&Path| !directory.exists();
    let missing: Vec<_> = path.ancestors().skip(1).take_while(is_missing).collect();
    let listens = address::listen(path).map(drop);
    for directory in missing {
        if let Err(error) = std::fs::remove_dir(directory) {
            // Another program uses it, or it could not be created.
            log::debug!("{}: {error}", directory.display());
        }
    }
    listens
}

/// The core of a NIC, its thread started if it is the first one there.
fn core_for(
    nic: &NicConfig,
    process: &ProcessConfig,
    cores: &mut Vec<Arc<Core>>,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<Arc<Core>, OpenError> {
    let last = || core_affinity::get_core_ids().and_then(|ids| ids.last().map(|id| id.id));
    let number = nic.core.or_else(last).unwrap_or(0);
    if let Some(core) = cores.iter().find(|core| core.number == number) {
        return Ok(Arc::clone(core));
    }
    let core = Core::new(number, process)?;
    threads.push(core.start()?);
    cores.push(Arc::clone(&core));
    Ok(core)
}

fn end_nics(nics: &[Served], cores: &[Arc<Core>], threads: Vec<JoinHandle<()>>) {
    let close = |served: &Served| {
        // It leaves its network while its core still polls.
        let nic = *served.nic.lock().unwrap_or_else(PoisonError::into_inner);
        let _was_open = nic::close(nic);
    };
    // At once: peers can take the time of each NIC, and not those of all one after the other.
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
