//! Server process of a local run, CPU pinning, signals.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use core_affinity::CoreId;

use crate::cli::{CommonOptions, Cores, ServerOptions};
use crate::error::{Error, Result};
use crate::nic::{NicOptions, NicSettings};
use crate::output;
use crate::sync::{AtomicBool, Ordering};

/// Timeout for the start and the exit of the server process, on a busy machine.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The line that the server process prints when its NIC is open.
const READY: &str = "ready";

/// Flag that requests an orderly end of the run.
#[derive(Clone, Debug)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Sets the flag at the first SIGINT or SIGTERM; a second signal ends the process at once.
    pub(crate) fn on_signals() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // In this order: at the first signal the conditional shutdown finds the flag clear.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&flag),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| Error::io("signal handlers", error))?;
        }
        Ok(Self(flag))
    }

    /// A flag that is never set; for tests.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Sets the flag at SIGTERM and ignores SIGINT: a terminal sends SIGINT to the parent as well, which ends the run.
    pub(crate) fn on_sigterm() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(
            signal_hook::consts::SIGINT,
            Arc::new(AtomicBool::new(false)),
        )
        .and_then(|_| signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&flag)))
        .map_err(|error| Error::io("signal handlers", error))?;
        Ok(Self(flag))
    }

    /// Returns whether the run is to end.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: the flag carries no data; the handler's store becomes visible soon enough.
        self.0.load(Ordering::Relaxed)
    }
}

/// Chooses the cores of a run on one host: the requested ones, else the first two except for the core `reserved` by
/// a datapath process; client and server share one if there is no other.
/// Returns `None` if there is only one core; the caller warns.
pub(crate) fn choose_cores(
    requested: Option<Cores>,
    reserved: Option<usize>,
) -> Result<Option<Cores>> {
    let all = core_affinity::get_core_ids().unwrap_or_default();
    let is_allowed = |core: usize| all.iter().any(|id| id.id == core);
    match requested {
        Some(cores) if is_allowed(cores.client) && is_allowed(cores.server) => Ok(Some(cores)),
        Some(cores) => Err(Error::Usage(format!(
            "--cores {},{}: this process may use only cores {}",
            cores.client,
            cores.server,
            all.iter()
                .map(|id| id.id.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ))),
        None => {
            let mut free = all.iter().filter(|id| Some(id.id) != reserved);
            Ok(match (free.next(), free.next()) {
                (Some(client), Some(server)) => Some(Cores {
                    client: client.id,
                    server: server.id,
                }),
                (Some(both), None) if reserved.is_some() => Some(Cores {
                    client: both.id,
                    server: both.id,
                }),
                _ => None,
            })
        }
    }
}

/// Chooses the cores of a run whose client and server are both on this host; returns `None` otherwise.
pub(crate) fn choose_run_cores(
    common: &CommonOptions,
    settings: &NicSettings,
) -> Result<Option<Cores>> {
    match common.connect {
        Some(_) => Ok(None),
        None => choose_cores(common.both_cores()?, settings.process_core()),
    }
}

/// Describes the cores of a run, for the lines below the table.
pub(crate) fn describe_cores(common: &CommonOptions, cores: Option<Cores>) -> String {
    match (&common.connect, common.cores, cores) {
        (Some(host), Some(core), _) => {
            format!("{} (client); server on {host}", core.client())
        }
        (Some(host), None, _) => format!("not pinned; server on {host}"),
        (None, _, Some(cores)) => format!("{} (client), {} (server)", cores.client, cores.server),
        (None, _, None) => "one, shared by client and server".into(),
    }
}

/// Whether client and server of this run poll on the same core.
static SHARES_CORE: AtomicBool = AtomicBool::new(false);

/// Makes waiting threads yield: client and server poll on the same core. With a datapath process the library yields.
pub(crate) fn share_core() {
    // Relaxed: the flag carries no data.
    SHARES_CORE.store(true, Ordering::Relaxed);
}

/// Yields after an unsuccessful poll if the core is shared.
#[inline]
pub(crate) fn pause_if_shared() {
    if SHARES_CORE.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

/// Pins the calling thread, and the threads that it starts, to a core.
pub(crate) fn pin(core: usize) -> Result<()> {
    if core < MAX_CORES && core_affinity::set_for_current(CoreId { id: core }) {
        Ok(())
    } else {
        Err(Error::Usage(format!("cannot pin a thread to core {core}")))
    }
}

/// Size of the system's CPU set; `core_affinity` must not be called with a larger number.
const MAX_CORES: usize = 1024;

/// Makes one harmless system call that marks the begin or the end of a round in a trace, so that the system calls
/// between can be counted.
#[inline]
pub(crate) fn mark_in_trace() {
    let _ = std::os::unix::process::parent_id();
}

/// The server process of a local run, killed on drop.
///
/// It holds the read end of a pipe whose write end belongs to this process, and exits when the pipe closes: also when
/// this process is killed.
pub(crate) struct ServerProcess {
    child: Child,
    _stdin_pipe: ChildStdin,
    exited: Receiver<()>,
}

impl ServerProcess {
    /// Pins the client, and starts the pinned server process if the server runs on this host.
    pub(crate) fn for_run(
        common: &CommonOptions,
        nic_options: &NicOptions,
        cores: Option<Cores>,
        tag: &str,
    ) -> Result<Option<Self>> {
        if common.connect.is_some() {
            if let Some(cores) = common.cores {
                pin(cores.client())?;
            }
            return Ok(None);
        }
        match cores {
            Some(cores) => pin(cores.client)?,
            None => output::note(format_args!(
                "only one core is available: client and server share it, the results are not meaningful"
            )),
        }
        Self::start(&ServerOptions {
            segment: nic_options.segment.clone(),
            config: nic_options.config.clone(),
            device: nic_options.device.clone(),
            tag: tag.to_owned(),
            memory: nic_options.memory,
            core: cores.map(|cores| cores.server),
            shares_core: SHARES_CORE.load(Ordering::Relaxed),
        })
        .map(Some)
    }

    /// Starts this program as a server process and waits until it is ready.
    pub(crate) fn start(options: &ServerOptions) -> Result<Self> {
        let what = "server process";
        let program = std::env::current_exe().map_err(|error| Error::io(what, error))?;
        let mut command = Command::new(program);
        command
            .args(options.to_arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(config) = &options.config {
            command.arg("--config").arg(config);
        }
        let mut child = command.spawn().map_err(|error| Error::io(what, error))?;
        let (Some(stdin_pipe), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Peer("server process has no pipes".into()));
        };
        let (line_sender, line) = mpsc::channel();
        let (exit_sender, exited) = mpsc::channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut first = String::new();
            let got = output.read_line(&mut first);
            // The receiver may have timed out, and has reported that.
            let _ = line_sender.send(got.map(|_| first));
            // Returns at end of file, when the process exits; it prints nothing more.
            let _ = output.read_to_end(&mut Vec::new());
            drop(exit_sender);
        });
        let server_process = Self {
            child,
            _stdin_pipe: stdin_pipe,
            exited,
        };
        match line.recv_timeout(PROCESS_TIMEOUT) {
            Ok(Ok(text)) if text.trim_end() == READY => Ok(server_process),
            Ok(Ok(_)) => Err(Error::Peer(
                "server process exited before it was ready".into(),
            )),
            Ok(Err(error)) => Err(Error::io(what, error)),
            Err(_) => Err(Error::Peer("timed out: server process is not ready".into())),
        }
    }

    /// Waits for the exit of a process that received `Quit`.
    pub(crate) fn finish(self) {
        // `Disconnected` is the expected result; after a timeout `drop` kills the process.
        let _ = self.exited.recv_timeout(PROCESS_TIMEOUT);
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if the process has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports to the parent that the server process is ready, and makes this process exit when the parent does.
pub(crate) fn report_ready() -> Result<()> {
    output::line(format_args!("{READY}"))?;
    std::thread::spawn(|| {
        // The pipe carries no data: the read returns only when it closes.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_cores_rejects_missing_core() {
        let server = 1 << 20;
        assert!(choose_cores(Some(Cores { client: 0, server }), None).is_err());
    }

    #[test]
    fn default_cores_differ() {
        if let Some(cores) = choose_cores(None, None).unwrap() {
            assert_ne!(cores.client, cores.server);
        } else {
            assert!(core_affinity::get_core_ids().unwrap_or_default().len() < 2);
        }
    }

    #[test]
    fn reserved_core_is_not_chosen() {
        let all = core_affinity::get_core_ids().unwrap();
        for reserved in all.iter().map(|core| core.id) {
            let Some(cores) = choose_cores(None, Some(reserved)).unwrap() else {
                assert_eq!(all.len(), 1);
                continue;
            };
            assert!(cores.client != reserved && cores.server != reserved);
            assert_eq!(cores.client == cores.server, all.len() == 2);
        }
    }
}
