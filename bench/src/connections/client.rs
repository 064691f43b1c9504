//! The client of `vibench connect`: requests and closes connections, measures and reports.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use vi_types::NetAddress;
use vipl::{Timeout, VipError};

use super::report::{ConnectResult, StepResult};
use super::{AcceptResult, ConnectionRound, STEPS, layout, report, resident_kib};
use crate::channel::{Channel, Message, Purpose, RESPONSE_TIMEOUT, unexpected_message};
use crate::cli::{self, ConnectOptions};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::nic::{self, Nic};
use crate::output;
use crate::process::{self, ServerProcess, StopFlag};
use crate::rendezvous::Rendezvous;
use crate::report::{JsonFile, Percentiles};
use crate::server;
use crate::totals::new_histogram;

/// Runs `vibench connect`.
pub(crate) fn run(options: &ConnectOptions) -> Result<()> {
    let common = &options.common;
    cli::check(common)?;
    let stop = StopFlag::on_signals()?;
    if common.listen {
        return server::listen(common, &stop);
    }
    let tag = std::process::id().to_string();
    let nic_options = common.nic_options(&tag);
    let settings = nic_options.load()?;
    let json = JsonFile::open(common.json.as_deref())?;
    let cores = process::choose_run_cores(common, &settings)?;
    let server_process = ServerProcess::for_run(common, &nic_options, cores, &tag)?;
    let nic = Nic::open(&settings)?;
    let config = settings.config;
    let rendezvous = Rendezvous::new(&nic, common, &tag, stop.clone())?;
    let mut run = Run {
        nic: &nic,
        options,
        addresses: rendezvous.addresses(Purpose::Connections)?,
        channel: rendezvous.channel()?,
        stop,
        setups_ns: new_histogram()?,
        result: ConnectResult::new(options, nic::port_name(&config)),
    };
    let outcome = run.run_steps();
    let (mut channel, result) = (run.channel, run.result);
    if let Some(json) = json {
        json.write(std::slice::from_ref(&result))?;
    }
    outcome?;
    channel.quit()?;
    drop(channel);
    if let Some(server_process) = server_process {
        server_process.finish();
    }
    result.check_growth(options.max_growth)
}

/// The client's side of one run.
struct Run<'a> {
    nic: &'a Nic,
    options: &'a ConnectOptions,
    /// Local address, and the address at which the server listens.
    addresses: (NetAddress, NetAddress),
    channel: Channel,
    stop: StopFlag,
    setups_ns: Histogram<u64>,
    result: ConnectResult,
}

/// Result of a round at the client.
#[derive(Clone, Copy, Debug, Default)]
struct ClientRoundResult {
    connections: u32,
    /// Requests repeated because the server did not listen yet (`VIP_NO_MATCH`).
    no_match: u64,
    elapsed: Duration,
}

impl Run<'_> {
    /// Makes the connections step by step and prints a line for each step. After an error the result contains the steps
    /// before.
    fn run_steps(&mut self) -> Result<()> {
        output::line(format_args!("{}", report::table_header()))?;
        let outcome = (0..STEPS).try_for_each(|step| self.step(step));
        if self.stop.is_set() && self.result.connections < self.options.connections {
            self.result.ended_early = Some("interrupted".into());
        }
        self.result.setup_ns = Percentiles::of(&self.setups_ns);
        outcome.and(output::line(format_args!(
            "{}",
            report::summary(&self.result)
        )))
    }

    fn step(&mut self, step: u32) -> Result<()> {
        if self.stop.is_set() {
            return Ok(());
        }
        let all = u64::from(self.options.connections);
        let up_to = |step: u32| (all * u64::from(step) / u64::from(STEPS)) as u32;
        let count = up_to(step + 1) - up_to(step);
        let peers = (u64::from(count) * u64::from(self.options.peers) / 100) as u32;
        let levels = &self.options.level;
        let level = levels[step as usize % levels.len()];
        let mut step_result = StepResult::new(level);
        for (peers, count) in [(false, count - peers), (true, peers)] {
            let round = ConnectionRound {
                level,
                peers,
                count,
                host: self.addresses.0.host.0,
            };
            // An interrupted run begins no round: the server's request to a peer would time out.
            if count > 0 && !self.stop.is_set() {
                self.round(&round, &mut step_result)?;
            }
        }
        step_result.resident_kib = resident_kib()?;
        self.result.add(step_result);
        output::line(format_args!(
            "{}",
            report::table_row(&self.result, &step_result)
        ))
    }

    fn round(&mut self, round: &ConnectionRound, step_result: &mut StepResult) -> Result<()> {
        let mut made = ClientRoundResult::default();
        let endpoint = Endpoint::new(self.nic, &layout(round.level))?;
        self.channel.command(&Message::Admit(*round))?;
        let outcome = self.make_connections(round, &endpoint, &mut made);
        drop(endpoint);
        let accepted = match self.channel.request(&Message::Admissions)? {
            Message::Admitted(accepted) => accepted,
            message => return Err(unexpected_message(&message)),
        };
        // An error of the client takes precedence.
        outcome?;
        let AcceptResult {
            made: server_connections,
            resident_kib,
            broken,
        } = accepted;
        if let Some(reason) = broken {
            return Err(Error::Peer(reason));
        }
        step_result.connections += made.connections;
        step_result.no_match += made.no_match;
        step_result.half_made += made.connections.abs_diff(server_connections);
        step_result.elapsed_ns += made.elapsed.as_nanos() as u64;
        step_result.far_resident_kib = resident_kib;
        Ok(())
    }

    fn make_connections(
        &mut self,
        round: &ConnectionRound,
        endpoint: &Endpoint,
        made: &mut ClientRoundResult,
    ) -> Result<()> {
        let start = Instant::now();
        while made.connections < round.count && !self.stop.is_set() {
            let setup = if round.peers {
                self.connect_peer(endpoint)?
            } else {
                self.connect_server(endpoint, made)?
            };
            // Longer times count as the maximum of the histogram.
            self.setups_ns.saturating_record(setup.as_nanos() as u64);
            endpoint.disconnect()?;
            made.connections += 1;
        }
        made.elapsed = start.elapsed();
        Ok(())
    }

    /// Makes a client/server connection, and returns the time of the successful request. While the server does not
    /// listen, the stack rejects requests at once (`VIP_NO_MATCH`), and retrying is up to the program.
    fn connect_server(
        &self,
        endpoint: &Endpoint,
        made: &mut ClientRoundResult,
    ) -> Result<Duration> {
        let (local, remote) = &self.addresses;
        let first = Instant::now();
        loop {
            let start = Instant::now();
            match endpoint.request(local, remote, Timeout::After(RESPONSE_TIMEOUT)) {
                Ok(()) => return Ok(start.elapsed()),
                Err(VipError::NoMatch) if first.elapsed() < RESPONSE_TIMEOUT => {
                    made.no_match += 1;
                    std::thread::yield_now();
                }
                Err(error) => return Err(Error::call("VipConnectRequest", error)),
            }
        }
    }

    fn connect_peer(&self, endpoint: &Endpoint) -> Result<Duration> {
        let (local, remote) = &self.addresses;
        let start = Instant::now();
        endpoint
            .request_peer(local, remote, Timeout::After(RESPONSE_TIMEOUT))
            .map_err(|error| Error::call("VipConnectPeerWait", error))?;
        Ok(start.elapsed())
    }
}
