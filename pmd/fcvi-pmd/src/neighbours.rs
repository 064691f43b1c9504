//! A NIC's own port, and the ports that it finds.

use std::io::Write;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use pmd::config::Config;
use pmd::nic::{self, Neighbourhood, OwnState};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::cli::NeighboursOptions;
use crate::report::{News, Report, news};

/// What ends a wait.
enum Wake {
    /// There is another neighbourhood.
    Changed(Neighbourhood),
    /// The NIC cannot be looked at any more.
    Lost(pmd::ControlError),
    /// Somebody wants us to end.
    Stop,
}

pub(crate) fn run(options: &NeighboursOptions, out: &mut impl Write) -> Result<(), Error> {
    pmd::logger::install("fcvi-pmd");
    let config = Config::read(&options.config).map_err(Error::Config)?;
    let config = config.nic(&options.device).ok_or_else(|| Error::NoNic {
        device: options.device.clone(),
        known: config.nics.iter().map(|nic| nic.name.clone()).collect(),
    })?;
    // Before the NIC is open: from then on, whoever ends us wants the others to be told.
    let (sender, wakes) = mpsc::channel();
    let signals = stop_on_signals(sender.clone())?;
    let handle = nic::open(config).map_err(Error::Open)?;
    let outcome = look(options, handle, &config.name, (sender, &wakes), out);
    let closed = nic::close(handle).map_err(Error::Nic);
    signals.close();
    outcome.and(closed)
}

fn look(
    options: &NeighboursOptions,
    handle: u64,
    name: &str,
    (sender, wakes): (Sender<Wake>, &Receiver<Wake>),
    out: &mut impl Write,
) -> Result<(), Error> {
    let deadline = Instant::now().checked_add(options.limit);
    let mut known = nic::neighbourhood(handle).map_err(Error::Nic)?;
    let report = Report {
        nic: name,
        json: options.json,
    };
    if options.watch {
        report.own(out, &known.own)?;
        let ports = known.ports.iter().copied().map(News::Is);
        report.news(out, ports)?;
    }
    watch(handle, known.clone(), sender);
    while known.own.state != OwnState::Failed {
        let wake = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
            Some(left) => wakes.recv_timeout(left),
            None => wakes.recv().map_err(RecvTimeoutError::from),
        };
        match wake {
            Ok(Wake::Changed(now)) => {
                if options.watch {
                    if now.own != known.own {
                        report.own(out, &now.own)?;
                    }
                    report.news(out, news(&known, &now))?;
                }
                known = now;
            }
            Ok(Wake::Lost(error)) => return Err(Error::Nic(error)),
            Ok(Wake::Stop) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                break;
            }
        }
    }
    if known.own.state == OwnState::Failed {
        return Err(Error::Failed(name.to_owned()));
    }
    if !options.watch {
        // As it is now: the ages too.
        let now = nic::neighbourhood(handle).map_err(Error::Nic)?;
        report.list(out, &now)?;
    }
    Ok(())
}

/// Tells of every change from `known` on, until the NIC is closed.
fn watch(handle: u64, mut known: Neighbourhood, sender: Sender<Wake>) {
    thread::spawn(move || {
        loop {
            match nic::await_neighbourhood(handle, &known, None) {
                Ok(Some(now)) => {
                    known.clone_from(&now);
                    // Nobody listens any more: the command ends.
                    if sender.send(Wake::Changed(now)).is_err() {
                        return;
                    }
                }
                // Without a limit there is always a change.
                Ok(None) => {}
                Err(error) => {
                    // Likewise: then it was the command that closed the NIC.
                    let _ = sender.send(Wake::Lost(error));
                    return;
                }
            }
        }
    });
}

/// Says so when SIGINT or SIGTERM comes: the NIC is to be closed. A second one ends the process at once.
fn stop_on_signals(sender: Sender<Wake>) -> Result<signal_hook::iterator::Handle, Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    thread::spawn(move || {
        let mut was_told = false;
        for signal in &mut signals {
            if was_told || sender.send(Wake::Stop).is_err() {
                std::process::exit(128 + signal);
            }
            was_told = true;
        }
    });
    Ok(handle)
}
