//! `run`: the datapath process, from start to SIGTERM.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::c_int;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use pmd::attach::server::Server;
use pmd::config::{NicConfig, ProcessConfig, Quota, read_to_serve};
use pmd::logger::LEVEL_VARIABLE;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::journal;
use crate::log_writer::LogWriter;
use crate::service_manager::notify;
use crate::snapshot_source::SnapshotSource;
use crate::{Error, metrics, print_error, prometheus};

/// Limit of the wait for the last log lines at the end.
const LOG_LIMIT: Duration = Duration::from_millis(500);

pub(crate) fn run(file: &Path) -> ExitCode {
    let log = match LogWriter::start(std::io::stderr()) {
        Ok(log) => Log(log),
        Err(error) => {
            print_error(format_args!("fcvi-pmd: the log cannot be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let level = env_logger::Env::new().filter_or(LEVEL_VARIABLE, "info");
    let mut builder = env_logger::Builder::from_env(level);
    builder
        .format_target(false)
        .target(env_logger::Target::Pipe(Box::new(log.0.clone())));
    if journal::is_standard_error() {
        builder.format(journal::write);
    }
    builder.init();
    log_panics(log.0.clone());
    match run_until_end(file, &log.0) {
        Ok(()) => ExitCode::SUCCESS,
        // Written by the log thread, which a full pipe does not block.
        Err(error) => {
            log.0.write_line(&journal::error_lines(&error.report()));
            ExitCode::FAILURE
        }
    }
}

/// Writes panics to the log: the standard hook would block any panicking thread while standard error is not read.
fn log_panics(log: LogWriter) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("without a name");
        log.write_line(&journal::error_lines(&format!("thread {name} {panic}")));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            log.write_line(&trace.to_string());
        }
        log.finish(LOG_LIMIT);
    }));
}

fn run_until_end(file: &Path, log: &LogWriter) -> Result<(), Error> {
    vi_core::memory::drop_cap_sys_ptrace()?;
    // Installed before anything is opened: from then on a signal must close it in order.
    let actions = handle_signals(log.clone())?;
    let config = read_to_serve(file).map_err(Error::Config)?;
    let Some(process) = &config.process else {
        let (config, remedy) = (file.to_owned(), "add one");
        return Err(Error::NoProcess { config, remedy });
    };
    raise_descriptor_limit(process, &config.nic);
    let metrics = process.metrics;
    // Bound before applications attach: an invalid address is reported at once.
    let listener = metrics
        .map(|address| {
            TcpListener::bind(address).map_err(|error| Error::Metrics { address, error })
        })
        .transpose()?;
    let source = Arc::new(SnapshotSource::new(file, log.clone()));
    let snapshots = Arc::clone(&source);
    let status_handler = move |server: &Server| match serde_json::to_vec(&*snapshots.fresh(server))
    {
        Ok(bytes) => bytes,
        Err(error) => {
            log::error!("status: snapshot not serialized: {error}");
            Vec::new()
        }
    };
    let running = Running(Server::start(config, status_handler).map_err(Error::Open)?);
    let server = &running.0;
    let _metrics = listener
        .map(|listener| serve(listener, server, source))
        .transpose()?;
    log::info!("ready");
    notify("READY=1");
    for action in actions {
        if action == SignalAction::Stop {
            break;
        }
        notify("RELOADING=1");
        reload(server, file);
        notify("READY=1");
    }
    notify("STOPPING=1");
    Ok(())
}

/// Waits on drop until all log lines are written, unless standard error is not read.
struct Log(LogWriter);

impl Drop for Log {
    fn drop(&mut self) {
        self.0.finish(LOG_LIMIT);
    }
}

/// A server that is stopped on drop, so that its NICs leave their networks also after an error.
struct Running(Arc<Server>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    Reload,
    Stop,
}

/// Starts the signal thread: it also handles signals while NICs open and close, which takes seconds.
fn handle_signals(log: LogWriter) -> Result<Receiver<SignalAction>, Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (sender, actions) = mpsc::channel();
    let listen = move || {
        if let Some(signal) = forward_signals(&mut signals, &sender) {
            log::warn!("signal {signal}: exiting immediately");
            log.finish(LOG_LIMIT);
            std::process::exit(128 + signal);
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(listen)?;
    Ok(actions)
}

/// Sends the actions of signals. Returns at the second signal that requests to stop, at which the process exits
/// immediately.
fn forward_signals(
    signals: impl IntoIterator<Item = c_int>,
    actions: &Sender<SignalAction>,
) -> Option<c_int> {
    let mut is_stopping = false;
    for signal in signals {
        let action = match signal {
            SIGHUP => SignalAction::Reload,
            _ if is_stopping => return Some(signal),
            _ => {
                log::info!("signal {signal}: stopping; another one exits immediately");
                is_stopping = true;
                SignalAction::Stop
            }
        };
        // Fails once the receiver has stopped.
        let _ = actions.send(action);
    }
    None
}

/// Descriptors of the process itself: its NICs, threads, files, and 256 rejected connections whose close may block.
const OWN_DESCRIPTORS: u64 = 512;
/// Descriptors of an application besides those of its calls: the attach connection, its pidfd, another pidfd if its
/// private memory is accessed, and the event that wakes the poll thread.
const APPLICATION_DESCRIPTORS: u64 = 4;

/// Returns the number of descriptors that the process needs if all applications reach their limits.
fn descriptors_needed(process: &ProcessConfig, nics: &[NicConfig]) -> u64 {
    let calls = process.application.iter().filter_map(|a| a.max_calls);
    let default_calls = process
        .quota
        .max_calls
        .unwrap_or(Quota::default().max_calls);
    let calls = calls.fold(default_calls, u32::max);
    let pending = process.pending_connections();
    let of_each = APPLICATION_DESCRIPTORS + u64::from(calls);
    // Two sockets for each VI (one connection may be ending), and one for each pending connection.
    let tcp = nics.iter().filter(|nic| nic.network.vi_tcp().is_some());
    let tcp = tcp.map(|nic| 2 * u64::from(nic.limits.max_vi) + u64::from(nic.limits.max_incoming));
    let applications = u64::from(process.max_applications) * of_each;
    OWN_DESCRIPTORS + applications + u64::from(pending) + tcp.sum::<u64>()
}

/// Raises the limit of descriptors: the soft limit of a shell is too low for many applications and calls.
fn raise_descriptor_limit(process: &ProcessConfig, nics: &[NicConfig]) {
    let now = match vi_core::sys::raise_descriptor_limit() {
        Ok((before, now)) => {
            log::info!("open descriptors: {now} (RLIMIT_NOFILE; the soft limit was {before})");
            now
        }
        Err(error) => {
            log::warn!("open descriptors: RLIMIT_NOFILE cannot be raised: {error}");
            return;
        }
    };
    let needed = descriptors_needed(process, nics);
    if needed > now {
        log::warn!(
            "open descriptors: max_applications and max_calls, and max_vi and max_incoming of VI/TCP \
             NICs, allow for {needed}: raise LimitNOFILE of the service, or lower them"
        );
    }
}

/// Starts the Prometheus endpoint.
fn serve(
    listener: TcpListener,
    server: &Arc<Server>,
    snapshots: Arc<SnapshotSource>,
) -> Result<metrics::Server, Error> {
    let server = Arc::downgrade(server);
    let source = move || {
        let server = server.upgrade().ok_or(Error::Stopping)?;
        Ok(prometheus::text(&snapshots.recent(&server)))
    };
    let serving = metrics::serve(listener, source)?;
    log::info!("metrics at http://{}/metrics", serving.address());
    Ok(serving)
}

/// Applies the settings that can change at run time; an invalid file changes nothing.
fn reload(server: &Arc<Server>, file: &Path) {
    match read_to_serve(file) {
        Ok(config) => {
            log::info!("{}: configuration reloaded", file.display());
            for later in server.reload(&config) {
                log::warn!("{later}: takes effect after a restart");
            }
        }
        Err(error) => log::error!("{error}: the configuration is unchanged"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd::config::Config;

    #[test]
    fn forward_signals_returns_at_the_second_signal_to_stop() {
        let (sender, actions) = mpsc::channel();
        let last = forward_signals([SIGHUP, SIGTERM, SIGHUP, SIGINT, SIGHUP], &sender);
        assert_eq!(last, Some(SIGINT));
        let actions: Vec<_> = actions.try_iter().collect();
        let expected = [
            SignalAction::Reload,
            SignalAction::Stop,
            SignalAction::Reload,
        ];
        assert_eq!(actions, expected);
        assert_eq!(forward_signals([SIGINT], &sender), None);
    }

    #[test]
    fn descriptors_needed_uses_the_largest_max_calls() {
        let needed = |text: &str| {
            let text = format!("{text}\n[[nic]]\nshm = {{}}\n");
            let config = Config::parse(&text).unwrap();
            descriptors_needed(&config.process.unwrap(), &config.nic)
        };
        let process = "[process]\nmax_applications = 10\n";
        assert_eq!(needed(process), 512 + 10 * 68 + 1024);
        let quota = format!("{process}max_pending_per_user = 8\n[process.quota]\nmax_calls = 2\n");
        assert_eq!(needed(&quota), 512 + 10 * 6 + 16);
        let more = format!("{quota}[[process.application]]\ngroup = 7\nmax_calls = 9\n");
        assert_eq!(needed(&more), 512 + 10 * 13 + 16);
        let tcp =
            "[[nic]]\nvi_tcp = {}\nname = \"tcp\"\nlimits.max_vi = 100\nlimits.max_incoming = 50\n";
        assert_eq!(needed(&format!("{quota}{tcp}")), 512 + 10 * 6 + 16 + 250);
    }
}
