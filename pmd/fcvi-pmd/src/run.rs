//! The datapath process itself: from start to SIGTERM.

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
use pmd::config::{Config, NicConfig, ProcessConfig, Quota, TransportKind};
use pmd::logger::LEVEL_VARIABLE;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::journal;
use crate::log_writer::LogWriter;
use crate::service_manager::notify;
use crate::source::Own;
use crate::{Error, complain, metrics, prometheus};

/// The end waits for the last lines of the log, for this time at most.
const LOG_LIMIT: Duration = Duration::from_millis(500);

pub(crate) fn run(file: &Path) -> ExitCode {
    let log = match LogWriter::start(std::io::stderr()) {
        Ok(log) => Log(log),
        Err(error) => {
            complain(format_args!("fcvi-pmd: the log cannot be started: {error}"));
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
        // The log is on its way to standard error, and waits for no reader.
        Err(error) => {
            log.0.write_line(&journal::error_lines(&error.report()));
            ExitCode::FAILURE
        }
    }
}

/// Panics go to the log: the standard hook waits for the reader of standard error, whatever thread panics.
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
    pmd::obey_ptrace_rules()?;
    // Before anything is open: from then on, whoever ends us wants it closed in order.
    let wishes = listen_to_signals(log.clone())?;
    let config = Config::read_to_serve(file).map_err(Error::Config)?;
    let Some(process) = &config.process else {
        let (config, remedy) = (file.to_owned(), "add one");
        return Err(Error::NoProcess { config, remedy });
    };
    raise_descriptor_limit(process, &config.nics);
    let metrics = process.metrics;
    // Before anybody attaches: an address that cannot be used is said at once.
    let listener = metrics
        .map(|address| {
            TcpListener::bind(address).map_err(|error| Error::Metrics { address, error })
        })
        .transpose()?;
    let own = Arc::new(Own::new(file, log.clone()));
    let asked = Arc::clone(&own);
    let look = move |server: &Server| match serde_json::to_vec(&*asked.fresh(server)) {
        Ok(bytes) => bytes,
        Err(error) => {
            log::error!("a snapshot cannot be written: {error}");
            Vec::new()
        }
    };
    let running = Running(Server::start(config, look).map_err(Error::Open)?);
    let server = &running.0;
    let _metrics = listener
        .map(|listener| serve(listener, server, own))
        .transpose()?;
    log::info!("ready");
    notify("READY=1");
    for wish in wishes {
        if wish == Wish::End {
            break;
        }
        notify("RELOADING=1");
        reload(server, file);
        notify("READY=1");
    }
    notify("STOPPING=1");
    Ok(())
}

/// What is logged until it is dropped is written, unless standard error is not read.
struct Log(LogWriter);

impl Drop for Log {
    fn drop(&mut self) {
        self.0.finish(LOG_LIMIT);
    }
}

/// A server that is stopped on drop: whatever ends us, its NICs leave their networks.
struct Running(Arc<Server>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Reload,
    End,
}

/// Hears signals from now on, whatever else is done meanwhile: NICs take seconds to open and to close.
fn listen_to_signals(log: LogWriter) -> Result<Receiver<Wish>, Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (sender, wishes) = mpsc::channel();
    let listen = move || {
        if let Some(signal) = hear(&mut signals, &sender) {
            log::warn!("signal {signal}: ended at once");
            log.finish(LOG_LIMIT);
            std::process::exit(128 + signal);
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(listen)?;
    Ok(wishes)
}

/// Passes on what signals ask for, up to the second one that asks for the end: whoever sends it does not want to wait.
fn hear(signals: impl IntoIterator<Item = c_int>, wishes: &Sender<Wish>) -> Option<c_int> {
    let mut is_ending = false;
    for signal in signals {
        let wish = match signal {
            SIGHUP => Wish::Reload,
            _ if is_ending => return Some(signal),
            _ => {
                log::info!("signal {signal}: ending; another one ends it at once");
                is_ending = true;
                Wish::End
            }
        };
        // Nobody listens to wishes any more once it ends.
        let _ = wishes.send(wish);
    }
    None
}

/// Descriptors of the process itself: its NICs, threads, files.
const OWN_DESCRIPTORS: u64 = 256;
/// Those of an application beside its calls: the connection that it lives by, its process, that process once
/// more if memory of it is reached that is not shared, and what it wakes the poll thread by.
const APPLICATION_DESCRIPTORS: u64 = 4;

/// Descriptors that a process needs whose applications all have what they may.
fn descriptors_needed(process: &ProcessConfig, nics: &[NicConfig]) -> u64 {
    let calls = process.application.iter().filter_map(|a| a.max_calls);
    let usual = process
        .quota
        .max_calls
        .unwrap_or(Quota::default().max_calls);
    let calls = calls.fold(usual, u32::max);
    let pending = process.max_pending_per_user;
    let of_each = APPLICATION_DESCRIPTORS + u64::from(calls);
    // A socket for each VI, and for each connection that is none's yet or ends.
    let tcp = nics
        .iter()
        .filter(|nic| nic.transport == TransportKind::ViTcp);
    let tcp = tcp.map(|nic| 2 * u64::from(nic.max_vi) + u64::from(nic.max_incoming));
    let applications = u64::from(process.max_applications) * of_each;
    OWN_DESCRIPTORS + applications + u64::from(pending) + tcp.sum::<u64>()
}

/// Each application and each of its calls takes some: the soft limit of a shell is soon reached.
fn raise_descriptor_limit(process: &ProcessConfig, nics: &[NicConfig]) {
    let now = match pmd::raise_descriptor_limit() {
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
            "open descriptors: max_applications and max_calls, and max_vi and max_incoming of NICs of \
             vi-tcp, allow for {needed}: raise LimitNOFILE of the service, or lower them"
        );
    }
}

/// The Prometheus endpoint, for as long as the server runs.
fn serve(
    listener: TcpListener,
    server: &Arc<Server>,
    own: Arc<Own>,
) -> Result<metrics::Server, Error> {
    let server = Arc::downgrade(server);
    let source = move || {
        let server = server.upgrade().ok_or(Error::Ending)?;
        Ok(prometheus::text(&own.recent(&server)))
    };
    let serving = metrics::serve(listener, source)?;
    log::info!("metrics at http://{}/metrics", serving.address());
    Ok(serving)
}

/// Takes over what can change; a file that is wrong changes nothing.
fn reload(server: &Arc<Server>, file: &Path) {
    match Config::read_to_serve(file) {
        Ok(config) => {
            log::info!("{}: read again", file.display());
            for later in server.reload(&config) {
                log::warn!("{later}: takes effect when the process is started again");
            }
        }
        Err(error) => log::error!("{error}: the configuration stays as it was"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_signal_to_end_is_not_waited_for() {
        let (sender, wishes) = mpsc::channel();
        let heard = hear([SIGHUP, SIGTERM, SIGHUP, SIGINT, SIGHUP], &sender);
        assert_eq!(heard, Some(SIGINT));
        let wishes: Vec<_> = wishes.try_iter().collect();
        assert_eq!(wishes, [Wish::Reload, Wish::End, Wish::Reload]);
        assert_eq!(hear([SIGINT], &sender), None);
    }

    #[test]
    fn descriptors_are_counted_for_those_who_may_make_most_calls() {
        let needed = |text: &str| {
            let text = format!("{text}\n[[nic]]\n");
            let config = Config::parse(&text).unwrap();
            descriptors_needed(&config.process.unwrap(), &config.nics)
        };
        let process = "[process]\nmax_applications = 10\n";
        assert_eq!(needed(process), 256 + 10 * 68 + 512);
        let quota = format!("{process}max_pending_per_user = 8\n[process.quota]\nmax_calls = 2\n");
        assert_eq!(needed(&quota), 256 + 10 * 6 + 8);
        let more = format!("{quota}[[process.application]]\ngroup = 7\nmax_calls = 9\n");
        assert_eq!(needed(&more), 256 + 10 * 13 + 8);
        let tcp =
            "[[nic]]\nname = \"tcp\"\ntransport = \"vi-tcp\"\nmax_vi = 100\nmax_incoming = 50\n";
        assert_eq!(needed(&format!("{quota}{tcp}")), 256 + 10 * 6 + 8 + 250);
    }
}
