//! `neighbours`: opens a NIC and reports its own port and its neighbour ports.

use std::io::Write;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use pmd::config::Config;
use pmd::nic::{self, NetworkView, OwnState};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::cli::NeighboursOptions;
use crate::neighbour_report::{NeighbourEvent, Report, changes};

/// An event that the command waits for.
enum WatchEvent {
    /// The network view has changed.
    Changed(NetworkView),
    /// The network view is no longer available.
    Lost(vi_types::CallError),
    /// A signal requested to stop.
    Stop,
}

pub(crate) fn run(options: &NeighboursOptions, out: &mut impl Write) -> Result<(), Error> {
    pmd::logger::install("fcvi-pmd");
    let config = Config::read(&options.config).map_err(Error::Config)?;
    let config = config.nic(&options.device).ok_or_else(|| Error::NoNic {
        device: options.device.clone(),
        known: config.nic.iter().map(|nic| nic.name.clone()).collect(),
    })?;
    // Installed before the NIC is opened: from then on a signal must close it, so that the port logs out.
    let (sender, events) = mpsc::channel();
    let signals = stop_on_signals(sender.clone())?;
    let handle = nic::open(config).map_err(Error::Open)?;
    let outcome = report_neighbours(options, handle, &config.name, (sender, &events), out);
    let closed = nic::close(handle).map_err(Error::Nic);
    signals.close();
    outcome.and(closed)
}

fn report_neighbours(
    options: &NeighboursOptions,
    handle: u64,
    name: &str,
    (sender, events): (Sender<WatchEvent>, &Receiver<WatchEvent>),
    out: &mut impl Write,
) -> Result<(), Error> {
    let deadline = Instant::now().checked_add(options.limit);
    let mut known = nic::network_view(handle).map_err(Error::Nic)?;
    let report = Report {
        nic: name,
        json: options.json,
    };
    if options.watch {
        report.own(out, &known.own)?;
        let ports = known.ports.iter().copied().map(NeighbourEvent::Present);
        report.events(out, ports)?;
    }
    watch(handle, known.clone(), sender);
    while known.own.state != OwnState::Failed {
        let event = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
            Some(left) => events.recv_timeout(left),
            None => events.recv().map_err(RecvTimeoutError::from),
        };
        match event {
            Ok(WatchEvent::Changed(now)) => {
                if options.watch {
                    if now.own != known.own {
                        report.own(out, &now.own)?;
                    }
                    report.events(out, changes(&known, &now))?;
                }
                known = now;
            }
            Ok(WatchEvent::Lost(error)) => return Err(Error::Nic(error)),
            Ok(WatchEvent::Stop)
            | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                break;
            }
        }
    }
    if known.own.state == OwnState::Failed {
        return Err(Error::Failed(name.to_owned()));
    }
    if !options.watch {
        // Read again, for up-to-date ages.
        let now = nic::network_view(handle).map_err(Error::Nic)?;
        report.list(out, &now)?;
    }
    Ok(())
}

/// Starts a thread that sends every change after `known`, until the NIC is closed.
fn watch(handle: u64, mut known: NetworkView, sender: Sender<WatchEvent>) {
    thread::spawn(move || {
        loop {
            match nic::await_network_change(handle, &known, None) {
                Ok(Some(now)) => {
                    known.clone_from(&now);
                    // Fails when the command ends.
                    if sender.send(WatchEvent::Changed(now)).is_err() {
                        return;
                    }
                }
                // Does not happen without a timeout.
                Ok(None) => {}
                Err(error) => {
                    // Fails if the command has closed the NIC.
                    let _ = sender.send(WatchEvent::Lost(error));
                    return;
                }
            }
        }
    });
}

/// Starts a thread that sends [`WatchEvent::Stop`] at SIGINT or SIGTERM, and exits immediately at a second signal.
fn stop_on_signals(sender: Sender<WatchEvent>) -> Result<signal_hook::iterator::Handle, Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    thread::spawn(move || {
        let mut is_stopping = false;
        for signal in &mut signals {
            if is_stopping || sender.send(WatchEvent::Stop).is_err() {
                std::process::exit(128 + signal);
            }
            is_stopping = true;
        }
    });
    Ok(handle)
}
