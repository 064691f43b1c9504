//! The end that asks, ends, measures and reports.

use std::time::{Duration, Instant};

use fcvi_frame::NetAddress;
use hdrhistogram::Histogram;
use vipl::{Timeout, VipError};

use super::report::{ConnectResult, StepResult};
use super::{Admitted, Round, STEPS, report, resident_kib, shape};
use crate::channel::{ANSWER_TIMEOUT, Channel, Message, Purpose, out_of_place};
use crate::cli::{self, ConnectOptions};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::nic::{self, Nic, Selection};
use crate::output;
use crate::process::{self, Partner, Stop};
use crate::reach::Reach;
use crate::report::{JsonFile, Percentiles};
use crate::server;
use crate::tally::new_histogram;

/// Runs the command of the user.
pub(crate) fn run(options: &ConnectOptions) -> Result<()> {
    let ends = &options.ends;
    cli::check(ends)?;
    let stop = Stop::on_signals()?;
    if ends.listen {
        return server::listen(ends, &stop);
    }
    let tag = std::process::id().to_string();
    let selection = Selection::of_run(ends, &tag);
    let choice = selection.load()?;
    let json = JsonFile::open(ends.json.as_deref())?;
    let cores = process::cores_of_run(ends, &choice)?;
    let partner = Partner::of_run(ends, &selection, cores, &tag)?;
    let nic = Nic::open(&choice)?;
    let config = choice.config;
    let reach = Reach::new(&nic, ends, &tag, stop.clone())?;
    let mut run = Run {
        nic: &nic,
        options,
        addresses: reach.addresses(Purpose::Connections)?,
        channel: reach.channel()?,
        stop,
        setups_ns: new_histogram()?,
        result: ConnectResult::new(options, nic::port_name(&config)),
    };
    let outcome = run.make_all();
    let (mut channel, result) = (run.channel, run.result);
    if let Some(json) = json {
        json.write(std::slice::from_ref(&result))?;
    }
    outcome?;
    channel.quit()?;
    drop(channel);
    if let Some(partner) = partner {
        partner.finish();
    }
    result.judge(options.max_growth)
}

struct Run<'a> {
    nic: &'a Nic,
    options: &'a ConnectOptions,
    /// Our name, and where the other end waits.
    addresses: (NetAddress, NetAddress),
    channel: Channel,
    stop: Stop,
    setups_ns: Histogram<u64>,
    result: ConnectResult,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, Default)]
struct Made {
    connections: u32,
    /// Requests for which nobody waited yet, and that were made again.
    no_match: u64,
    elapsed: Duration,
}

impl Run<'_> {
    /// Makes the connections step by step and prints each; what was made before an error stays
    /// in the result.
    fn make_all(&mut self) -> Result<()> {
        output::line(format_args!("{}", report::table_head()))?;
        let outcome = (0..STEPS).try_for_each(|step| self.step(step));
        if self.stop.is_asked() && self.result.connections < self.options.connections {
            self.result.ended_early = Some("interrupted".into());
        }
        self.result.setup_ns = Percentiles::of(&self.setups_ns);
        outcome.and(output::line(format_args!(
            "{}",
            report::summary(&self.result)
        )))
    }

    fn step(&mut self, step: u32) -> Result<()> {
        if self.stop.is_asked() {
            return Ok(());
        }
        let all = u64::from(self.options.connections);
        let up_to = |step: u32| (all * u64::from(step) / u64::from(STEPS)) as u32;
        let count = up_to(step + 1) - up_to(step);
        let peers = (u64::from(count) * u64::from(self.options.peers) / 100) as u32;
        let levels = &self.options.level;
        let level = levels[step as usize % levels.len()];
        let mut row = StepResult::new(level);
        for (peers, count) in [(false, count - peers), (true, peers)] {
            let round = Round {
                level,
                peers,
                count,
                host: self.addresses.0.host.0,
            };
            if count > 0 {
                self.round(&round, &mut row)?;
            }
        }
        row.resident_kib = resident_kib()?;
        self.result.add(row);
        output::line(format_args!("{}", report::table_row(&self.result, &row)))
    }

    fn round(&mut self, round: &Round, row: &mut StepResult) -> Result<()> {
        let mut made = Made::default();
        let endpoint = Endpoint::new(self.nic, &shape(round.level))?;
        self.channel.tell(&Message::Admit(*round))?;
        let outcome = self.make(round, &endpoint, &mut made);
        drop(endpoint);
        let seen = match self.channel.ask(&Message::Admissions)? {
            Message::Admitted(seen) => seen,
            message => return Err(out_of_place(&message)),
        };
        // Of both ends' reasons ours is the first to know.
        outcome?;
        let Admitted {
            made: theirs,
            resident_kib,
            broken,
        } = seen;
        if let Some(reason) = broken {
            return Err(Error::Peer(reason));
        }
        row.connections += made.connections;
        row.no_match += made.no_match;
        row.half_made += made.connections.abs_diff(theirs);
        row.elapsed_ns += made.elapsed.as_nanos() as u64;
        row.far_resident_kib = resident_kib;
        Ok(())
    }

    fn make(&mut self, round: &Round, endpoint: &Endpoint, made: &mut Made) -> Result<()> {
        let start = Instant::now();
        while made.connections < round.count && !self.stop.is_asked() {
            let setup = if round.peers {
                self.ask_peer(endpoint)?
            } else {
                self.ask_server(endpoint, made)?
            };
            // What is longer than the histogram is its longest.
            self.setups_ns.saturating_record(setup.as_nanos() as u64);
            endpoint.disconnect()?;
            made.connections += 1;
        }
        made.elapsed = start.elapsed();
        Ok(())
    }

    /// A connection with a server. Until it waits for the next client, a stack says at once that
    /// nobody does; asking again is what the interface leaves to programs.
    fn ask_server(&self, endpoint: &Endpoint, made: &mut Made) -> Result<Duration> {
        let (local, remote) = &self.addresses;
        let first = Instant::now();
        loop {
            let start = Instant::now();
            match endpoint.request(local, remote, Timeout::After(ANSWER_TIMEOUT)) {
                Ok(()) => return Ok(start.elapsed()),
                Err(VipError::NoMatch) if first.elapsed() < ANSWER_TIMEOUT => {
                    made.no_match += 1;
                    std::thread::yield_now();
                }
                Err(error) => return Err(Error::call("VipConnectRequest", error)),
            }
        }
    }

    fn ask_peer(&self, endpoint: &Endpoint) -> Result<Duration> {
        let (local, remote) = &self.addresses;
        let start = Instant::now();
        endpoint
            .request_peer(local, remote, Timeout::After(ANSWER_TIMEOUT))
            .map_err(|error| Error::call("VipConnectPeerWait", error))?;
        Ok(start.elapsed())
    }
}
