//! The second process, cores, signals.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use core_affinity::CoreId;

use crate::cli::{AnswerOptions, Cores, Ends};
use crate::error::{Error, Result};
use crate::nic::{Choice, Selection};
use crate::output;
use crate::sync::{AtomicBool, Ordering};

/// How long the second process may take to start or to end, on a machine that does other things.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The line that the second process prints when its NIC is open.
const READY: &str = "ready";

/// Whether somebody asked the program to stop.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops softly at the first SIGINT or SIGTERM and at once at the second.
    pub(crate) fn on_signals() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The order matters: the first signal finds the flag still clear.
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

    /// Never asked for; for tests.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Leaves SIGINT to the process that started this one: a terminal sends it to both.
    pub(crate) fn left_to_parent() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(
            signal_hook::consts::SIGINT,
            Arc::new(AtomicBool::new(false)),
        )
        .and_then(|_| signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&flag)))
        .map_err(|error| Error::io("signal handlers", error))?;
        Ok(Self(flag))
    }

    /// Whether to stop.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: the flag carries no data; the handler's store is seen soon enough.
        self.0.load(Ordering::Relaxed)
    }
}

/// The two cores of a run on one host: those asked for, else the first two beside the one that a
/// datapath process has `taken`; both ends share one if there is no other.
/// `None` when there is only one at all, which the caller tells its user.
pub(crate) fn choose_cores(asked: Option<Cores>, taken: Option<usize>) -> Result<Option<Cores>> {
    let all = core_affinity::get_core_ids().unwrap_or_default();
    let is_there = |core: usize| all.iter().any(|id| id.id == core);
    match asked {
        Some(cores) if is_there(cores.near) && is_there(cores.far) => Ok(Some(cores)),
        Some(cores) => Err(Error::Usage(format!(
            "cores {},{} are not both among those this process may use: {}",
            cores.near,
            cores.far,
            all.iter()
                .map(|id| id.id.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ))),
        None => {
            let mut free = all.iter().filter(|id| Some(id.id) != taken);
            Ok(match (free.next(), free.next()) {
                (Some(near), Some(far)) => Some(Cores {
                    near: near.id,
                    far: far.id,
                }),
                (Some(both), None) if taken.is_some() => Some(Cores {
                    near: both.id,
                    far: both.id,
                }),
                _ => None,
            })
        }
    }
}

/// The cores of a run whose ends are both here; none otherwise.
pub(crate) fn cores_of_run(ends: &Ends, choice: &Choice) -> Result<Option<Cores>> {
    match ends.connect {
        Some(_) => Ok(None),
        None => choose_cores(ends.both_cores()?, choice.process_core()),
    }
}

/// Which cores a run uses, for its user.
pub(crate) fn describe(ends: &Ends, cores: Option<Cores>) -> String {
    match (&ends.connect, ends.cores, cores) {
        (Some(host), Some(core), _) => {
            format!(
                "{} (measuring end); the remote end runs on {host}",
                core.near()
            )
        }
        (Some(host), None, _) => format!("not pinned; the remote end runs on {host}"),
        (None, _, Some(cores)) => format!(
            "{} (measuring end), {} (answering end)",
            cores.near, cores.far
        ),
        (None, _, None) => "one for both ends".into(),
    }
}

/// Both ends of this run poll on one core.
static SHARES_CORE: AtomicBool = AtomicBool::new(false);

/// From now on a thread that waits offers its core, which the other end polls on, too. Through a
/// datapath process the library does that.
pub(crate) fn share_core() {
    // Relaxed: the flag carries no data.
    SHARES_CORE.store(true, Ordering::Relaxed);
}

/// A look that found nothing.
#[inline]
pub(crate) fn pause() {
    if SHARES_CORE.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

/// Keeps the calling thread, and those that it starts, on a core.
pub(crate) fn pin(core: usize) -> Result<()> {
    if core < MOST_CORES && core_affinity::set_for_current(CoreId { id: core }) {
        Ok(())
    } else {
        Err(Error::Usage(format!("cannot stay on core {core}")))
    }
}

/// Cores that a set of the system's has room for; the library takes no other number.
const MOST_CORES: usize = 1024;

/// One harmless system call that marks the begin and the end of a round in a
/// trace, so that what stands between can be counted.
#[inline]
pub(crate) fn mark_in_trace() {
    let _ = std::os::unix::process::parent_id();
}

/// The second process, ended on every way out of this one.
///
/// It holds the read end of a pipe whose write end is here, and ends when that
/// closes: also when this process dies without running anything.
pub(crate) struct Partner {
    child: Child,
    _lifeline: ChildStdin,
    exited: Receiver<()>,
}

impl Partner {
    /// Pins this end, and starts and pins the other one if it is on this host, on these cores.
    pub(crate) fn of_run(
        ends: &Ends,
        selection: &Selection,
        cores: Option<Cores>,
        tag: &str,
    ) -> Result<Option<Self>> {
        if ends.connect.is_some() {
            if let Some(cores) = ends.cores {
                pin(cores.near())?;
            }
            return Ok(None);
        }
        match cores {
            Some(cores) => pin(cores.near)?,
            None => output::note(format_args!(
                "only one core: both ends take turns on it, the figures say little"
            )),
        }
        Self::start(&AnswerOptions {
            segment: selection.segment.clone(),
            config: selection.config.clone(),
            device: selection.device.clone(),
            tag: tag.to_owned(),
            memory: selection.memory,
            core: cores.map(|cores| cores.far),
            shares_core: SHARES_CORE.load(Ordering::Relaxed),
        })
        .map(Some)
    }

    /// Starts this program once more and waits until it can be connected to.
    pub(crate) fn start(options: &AnswerOptions) -> Result<Self> {
        let what = "the second process";
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
        let (Some(lifeline), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Peer("has no pipes".into()));
        };
        let (line_sender, line) = mpsc::channel();
        let (exit_sender, exited) = mpsc::channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut first = String::new();
            let got = output.read_line(&mut first);
            // A receiver that gave up waiting is no error: it says so itself.
            let _ = line_sender.send(got.map(|_| first));
            // The pipe ends with the process; what is read until then is nothing.
            let _ = output.read_to_end(&mut Vec::new());
            drop(exit_sender);
        });
        let partner = Self {
            child,
            _lifeline: lifeline,
            exited,
        };
        match line.recv_timeout(PROCESS_TIMEOUT) {
            Ok(Ok(text)) if text.trim_end() == READY => Ok(partner),
            Ok(Ok(_)) => Err(Error::Peer("ended before it was ready".into())),
            Ok(Err(error)) => Err(Error::io(what, error)),
            Err(_) => Err(Error::Peer("did not start in time".into())),
        }
    }

    /// Waits for the orderly end of a process that was told to quit.
    pub(crate) fn finish(self) {
        // Disconnected is the event waited for; a time-out leaves it to `drop`.
        let _ = self.exited.recv_timeout(PROCESS_TIMEOUT);
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // Both fail only when the process has ended, which is what they are for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the second process: tells the first one that it can connect, and ends
/// this process as soon as the first one is gone.
pub(crate) fn report_ready() -> Result<()> {
    output::line(format_args!("{READY}"))?;
    std::thread::spawn(|| {
        // The pipe carries nothing: any return of the read means that it closed.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_are_not_there_are_refused() {
        let far = 1 << 20;
        assert!(choose_cores(Some(Cores { near: 0, far }), None).is_err());
    }

    #[test]
    fn usual_cores_differ() {
        if let Some(cores) = choose_cores(None, None).unwrap() {
            assert_ne!(cores.near, cores.far);
        } else {
            assert!(core_affinity::get_core_ids().unwrap_or_default().len() < 2);
        }
    }

    #[test]
    fn the_core_of_a_datapath_process_is_left_to_it() {
        let all = core_affinity::get_core_ids().unwrap();
        for taken in all.iter().map(|core| core.id) {
            let Some(cores) = choose_cores(None, Some(taken)).unwrap() else {
                assert_eq!(all.len(), 1);
                continue;
            };
            assert!(cores.near != taken && cores.far != taken);
            assert_eq!(cores.near == cores.far, all.len() == 2);
        }
    }
}
