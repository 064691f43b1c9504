//! The server: accepts a client's control channel and executes its requests.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd::config::NicConfig;
use vipl::{Timeout, VipError, provider};

use crate::channel::{self, Channel, ConnectRole, Message, Purpose, RoundResult, VERSION};
use crate::cli::{CommonOptions, Cores, ServerOptions};
use crate::connections::ConnectionRound;
use crate::connections::server::ConnectionAcceptor;
use crate::endpoint::{Endpoint, RemoteMemory};
use crate::error::{Error, Result};
use crate::nic::{Nic, NicOptions, NicSettings};
use crate::output;
use crate::plan::Test;
use crate::process::{self, StopFlag};
use crate::raw_control;
use crate::workload::{Server, Workload};

/// The tag of a server that listens for clients of other hosts.
pub(crate) const PUBLIC_TAG: &str = "public";

/// Interval at which a waiting listener checks the stop flag.
const LISTEN_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Interval at which the server, while it waits for the connection of a test, checks for a repeated request: its
/// last response may have been lost.
const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Serves the process that started this one until it ends the run.
pub(crate) fn serve_parent(options: &ServerOptions) -> Result<()> {
    let stop = StopFlag::on_sigterm()?;
    if let Some(core) = options.core {
        process::pin(core)?;
    }
    if options.shares_core {
        process::share_core();
    }
    let config = NicOptions {
        config: options.config.clone(),
        device: options.device.clone(),
        segment: options.segment.clone(),
        memory: options.memory,
    }
    .load()?;
    let nic = Nic::open(&config)?;
    let config = config.config;
    process::report_ready()?;
    ServerSession::new(&nic, &config, &options.tag, &stop).serve_one()
}

/// Starts a thread that serves the client of this process until the run ends.
pub(crate) fn serve_in_thread(
    cores: Option<Cores>,
    settings: &NicSettings,
    tag: &str,
    stop: &StopFlag,
) -> Result<JoinHandle<Result<()>>> {
    // Before pinning: a thread of the NIC may need a core outside this thread's new affinity.
    let nic = Nic::open(settings)?;
    if let Some(cores) = cores {
        process::pin(cores.client)?;
    }
    let (config, tag, stop) = (settings.config.clone(), tag.to_owned(), stop.clone());
    Ok(std::thread::spawn(move || {
        if let Some(cores) = cores {
            process::pin(cores.server)?;
        }
        ServerSession::new(&nic, &config, &tag, &stop).serve_one()
    }))
}

/// Serves clients of other hosts, one after the other, until interrupted.
pub(crate) fn listen(common: &CommonOptions, stop: &StopFlag) -> Result<()> {
    if let Some(cores) = common.cores {
        process::pin(cores.server())?;
    }
    let config = NicOptions {
        config: common.config.clone(),
        device: common.device.clone(),
        segment: None,
        memory: common.memory,
    }
    .load()?;
    let nic = Nic::open(&config)?;
    let config = config.config;
    output::line(format_args!("vibench: listening; end with Ctrl-C"))?;
    while !stop.is_set() {
        match ServerSession::new(&nic, &config, PUBLIC_TAG, stop).serve_one() {
            Ok(()) => {}
            Err(_) if stop.is_set() => {}
            Err(error) => output::note(format_args!("{error}")),
        }
    }
    Ok(())
}

/// The server's side of one run.
struct ServerSession<'a> {
    nic: &'a Nic,
    config: &'a NicConfig,
    tag: &'a str,
    stop: &'a StopFlag,
    /// The current test.
    workload: Option<Workload<Server>>,
    /// Connections without traffic, kept until the run ends.
    idle: Vec<Workload<Server>>,
    raw: Option<raw_control::server::RawServer>,
}

impl<'a> ServerSession<'a> {
    fn new(nic: &'a Nic, config: &'a NicConfig, tag: &'a str, stop: &'a StopFlag) -> Self {
        Self {
            nic,
            config,
            tag,
            stop,
            workload: None,
            idle: Vec::new(),
            raw: None,
        }
    }

    /// Waits for a client and serves it until it quits.
    fn serve_one(mut self) -> Result<()> {
        let mut channel = Channel::for_server(self.nic)?;
        while !self.accept_one(Purpose::Control, LISTEN_POLL_INTERVAL, channel.endpoint())? {
            self.check_not_stopped()?;
        }
        loop {
            let message = channel.receive(None, || self.check_not_stopped())?;
            if message == Message::Quit {
                return channel.respond(&Message::Ready);
            }
            match self.handle(message, &mut channel) {
                Ok(()) => {}
                Err(error @ (Error::Broken(_) | Error::Interrupted)) => return Err(error),
                Err(error) if channel.has_pending_request() => {
                    channel.respond(&Message::Refused(shorten(&error.to_string())))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn check_not_stopped(&self) -> Result<()> {
        if self.stop.is_set() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    fn handle(&mut self, message: Message, channel: &mut Channel) -> Result<()> {
        match message {
            Message::Hello { version: VERSION } => channel.respond(&Message::Ready),
            Message::Hello { version } => Err(Error::Peer(format!(
                "protocol version {version}, expected {VERSION}: run the same vibench on both hosts"
            ))),
            Message::Open {
                test,
                number,
                memory,
                joins,
            } => {
                if !joins {
                    self.workload = None;
                }
                let opened = self.connected(&test, number, memory, channel)?;
                match &mut self.workload {
                    Some(workload) => workload.merge(opened),
                    none => {
                        *none = Some(opened);
                        Ok(())
                    }
                }
            }
            Message::Round => self.run_round(channel),
            Message::Close => {
                self.workload = None;
                channel.respond(&Message::Ready)
            }
            Message::Keep => {
                self.idle.extend(self.workload.take());
                channel.respond(&Message::Ready)
            }
            Message::RawOpen => {
                let raw = match &mut self.raw {
                    Some(raw) => raw,
                    none => {
                        none.insert(raw_control::server::RawServer::open(self.nic, self.config)?)
                    }
                };
                channel.respond(&Message::RawOpened(raw.address()?))
            }
            Message::RawRound(round) => self.raw()?.frames(&round, channel),
            Message::RawStop => {
                let result = self.raw()?.take_result()?;
                channel.respond(&Message::Finished(result))
            }
            Message::StreamRound(round) => self.raw()?.stream(&round, channel),
            Message::Admit(round) => self.accept_round(&round, channel),
            message => Err(channel::unexpected_message(&message)),
        }
    }

    fn raw(&mut self) -> Result<&mut raw_control::server::RawServer> {
        let raw = self.raw.as_mut();
        raw.ok_or_else(|| Error::Port("not open".into()))
    }

    /// Creates the server's end of a test and waits for its connection.
    fn connected(
        &self,
        test: &Test,
        number: u32,
        memory: RemoteMemory,
        channel: &mut Channel,
    ) -> Result<Workload<Server>> {
        test.check()?;
        let mut workload = Workload::<Server>::new(self.nic, test)?;
        workload.set_remote_memory(memory);
        channel.respond(&Message::Opened {
            memory: workload.endpoint().remote_memory(),
        })?;
        let purpose = Purpose::Data(number);
        let start = Instant::now();
        while !self.accept_one(purpose, CONNECT_POLL_INTERVAL, workload.endpoint())? {
            // `has_message` repeats the response if the client repeats its request.
            if channel.has_message()? || start.elapsed() > channel::RESPONSE_TIMEOUT {
                return Err(Error::Peer("timed out: no connection for the test".into()));
            }
        }
        Ok(workload)
    }

    /// Waits up to `interval` for a connection. Returns false if none was established: there was no request, or its
    /// sender timed out before it was accepted, and will retry.
    fn accept_one(
        &self,
        purpose: Purpose,
        interval: Duration,
        endpoint: &Endpoint,
    ) -> Result<bool> {
        let local = self.nic.local(channel::discriminator(
            self.tag,
            purpose,
            ConnectRole::Listener,
        )?);
        let found = provider::connect_wait(self.nic.handle(), &local, Timeout::After(interval));
        let accepted = match found {
            Ok(indication) => endpoint.accept(indication.conn),
            Err(error) => Err(Error::call("VipConnectWait", error)),
        };
        match accepted {
            Ok(()) => Ok(true),
            Err(Error::Call {
                error: VipError::Timeout,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn run_round(&mut self, channel: &mut Channel) -> Result<()> {
        let Some(workload) = &mut self.workload else {
            return Err(Error::Peer("round requested, but no test is open".into()));
        };
        channel.respond(&Message::Ready)?;
        let outcome = match workload {
            Workload::PingPong(end) => end.echo(channel).map(|broken| RoundResult {
                broken,
                ..RoundResult::default()
            }),
            Workload::Stream(end) => end.run(channel),
            Workload::Read(end) => end.run(channel),
        };
        if outcome.is_err() && !channel.has_pending_request() {
            // The error is reported in response to the stop request.
            channel.wait_for_stop()?;
        }
        channel.respond(&Message::Finished(outcome?))
    }

    /// Runs a round of connections; reports the result when the client requests it.
    fn accept_round(&mut self, round: &ConnectionRound, channel: &mut Channel) -> Result<()> {
        let mut acceptor = ConnectionAcceptor::new(self.nic, self.tag, round)?;
        channel.respond(&Message::Ready)?;
        let outcome = acceptor.run(channel);
        while !channel.has_pending_request() {
            match channel.receive(None, || self.check_not_stopped())? {
                Message::Admissions => {}
                message => return Err(channel::unexpected_message(&message)),
            }
        }
        channel.respond(&Message::Admitted(acceptor.close(outcome)?))
    }
}

/// Truncates an error text to what fits a control message.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}
