//! The subcommand `commands`: uses consecutive connections by commands of the input, one per line.
//!
//! | input | action | output |
//! | --- | --- | --- |
//! | `connect HOST NAME`, `accept NAME`, `connect-peer HOST NAME` | connects a VI as client, as server, or peer to peer | `connected` with the negotiated options, or the error |
//! | `advertise` | sends the address of the memory to the peer | `advertised` |
//! | `learn` | receives the address of the peer's memory | `learned` |
//! | `post COUNT` | posts additional receives | `posted` |
//! | `send SERIAL BYTES [IMMEDIATE]` | sends a message | `sent STATUS` |
//! | `post-sends COUNT BYTES` | posts sends without waiting | `posted` |
//! | `wait-sends COUNT` | waits for their completions | `sent STATUS` for each |
//! | `write OFFSET SERIAL BYTES [IMMEDIATE]` | writes to the peer's memory | `wrote STATUS` |
//! | `read OFFSET BYTES` | reads from the peer's memory | `read` with a description of the bytes, or the status |
//! | `receive` | waits for a message | `received` with a description of the bytes, or the status |
//! | `memory OFFSET BYTES` | reads the local memory | `memory` with a description of the bytes |
//! | `fill OFFSET SERIAL BYTES` | writes the local memory | `filled` |
//! | `answer-probes` | echoes probes until the connection is lost | `ended` with the outcome |
//! | `disconnect` | ends the connection | `ended` with the outcome |
//! | `echo-connect HOST NAME` | opens a second connection, to an echo server | `echo-connected` |
//! | `echo` | sends a message on it and checks the echo | `echoed COUNT` |

use std::io::{self, BufRead};

use vipl::{
    Completed, CompletedOperation, Descriptor, NetAddress, Operation, ReliabilityLevel, Timeout, Vi,
};

use crate::echo::{name_of, round_trip};
use crate::nic_context::{NicContext, TIMEOUT};
use crate::peer_session::{PeerSession, ViOptions, describe, pattern};
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// The discriminator of the client.
const CLIENT_NAME: &str = "vi-peer";

/// A connection to an echo server.
struct EchoConnection {
    vi: Vi,
    descriptors: Vec<Descriptor>,
    echoed: u64,
}

struct Runner<'a> {
    context: &'a NicContext,
    options: &'a ViOptions,
    session: Option<PeerSession>,
    echo: Option<EchoConnection>,
}

/// Runs the commands of the input.
pub(crate) fn run(nic: &str, options: &ViOptions) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    println!("ready");
    let mut runner = Runner {
        context: &context,
        options,
        session: None,
        echo: None,
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        runner
            .run(&words)
            .map_err(|error| format!("{line}: {error}"))?;
    }
    drop(runner);
    context.finish()
}

fn number<T: TryFrom<u64>>(word: &str) -> Result<T, Failure> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => word.parse()?,
    };
    T::try_from(parsed).map_err(|_| format!("{word} is out of range").into())
}

fn immediate(words: &[&str]) -> Result<Option<u32>, Failure> {
    words.first().map(|word| number(word)).transpose()
}

impl Runner<'_> {
    fn run(&mut self, words: &[&str]) -> Result<(), Failure> {
        match words {
            ["connect" | "accept" | "connect-peer", ..] => return self.connect(words),
            ["echo-connect", host, name] => return self.connect_echo(host, name),
            ["echo"] => return self.echo(),
            ["answer-probes" | "disconnect"] => return self.end(words == ["answer-probes"]),
            _ => {}
        }
        let session = self.session.as_mut().ok_or("not connected")?;
        match words {
            ["advertise"] => {
                session.advertise()?;
                println!("advertised");
            }
            ["learn"] => {
                let received = session.receive(TIMEOUT)?.ok_or("no message arrived")?;
                session.learn(received.first_bytes())?;
                println!("learned");
            }
            ["post", count] => {
                session.post(number(count)?, self.options.receive_bytes())?;
                println!("posted");
            }
            ["post-sends", count, bytes] => {
                for serial in 0..number(count)? {
                    session.begin(Operation::Send, &pattern(serial, number(bytes)?), None)?;
                }
                println!("posted");
            }
            ["wait-sends", count] => {
                for _ in 0..number(count)? {
                    println!("sent {}", session.wait()?.status);
                }
            }
            ["receive"] => {
                let received = session.receive(TIMEOUT)?.ok_or("no message arrived")?;
                println!("received {}", content(&received));
            }
            ["memory", offset, bytes] => {
                let memory = session.memory(number(offset)?, number(bytes)?);
                println!("memory {}", describe(&memory));
            }
            ["fill", offset, serial, bytes] => {
                session.fill(number(offset)?, &pattern(number(serial)?, number(bytes)?));
                println!("filled");
            }
            _ => return operate(session, words),
        }
        Ok(())
    }

    fn connect(&mut self, words: &[&str]) -> Result<(), Failure> {
        let (nic, ptag) = (self.context.nic(), self.context.ptag());
        let (names, events) = (self.context.names(), self.context.events());
        let session = PeerSession::new((nic, ptag), (names, events), self.options, CLIENT_NAME)?;
        let local = nic.local_address(CLIENT_NAME.as_bytes())?;
        let remote = |host: &str, name: &str| nic.remote_address(host, name.as_bytes());
        let outcome = match words {
            ["connect", host, name] => {
                let remote: NetAddress = remote(host, name)?;
                session
                    .vi
                    .connect(&local, &remote, Timeout::After(TIMEOUT))
                    .map(drop)
            }
            ["accept", name] => {
                let local = nic.local_address(name.as_bytes())?;
                let mut request = nic.connect_wait(&local, Timeout::After(TIMEOUT))?;
                let security = String::from_utf8_lossy(&request.security()?).into_owned();
                println!("request from {} security {security:?}", name_of(&request));
                request.accept(&session.vi)
            }
            ["connect-peer", host, name] => {
                let remote = remote(host, name)?;
                session
                    .vi
                    .connect_peer(&local, &remote, Timeout::After(TIMEOUT))?;
                println!("connecting");
                session.vi.connect_peer_wait().map(drop)
            }
            _ => return Err("unknown command".into()),
        };
        match outcome {
            Ok(()) => {
                let negotiated = session.vi.negotiated_options()?;
                println!(
                    "connected mtu {} flow-control {} security {:?}",
                    negotiated.max_transfer_bytes,
                    negotiated.flow_control,
                    String::from_utf8_lossy(&negotiated.security)
                );
                self.session = Some(session);
            }
            Err(error) => println!("connected {error:?}"),
        }
        Ok(())
    }

    fn end(&mut self, by_peer: bool) -> Result<(), Failure> {
        let mut session = self.session.take().ok_or("not connected")?;
        if by_peer {
            session.answer_probes(|| false)?;
        }
        println!("ended {}", session.end(by_peer)?);
        Ok(())
    }

    fn connect_echo(&mut self, host: &str, name: &str) -> Result<(), Failure> {
        let vi = (self.context).vi(ReliabilityLevel::ReliableDelivery, "echo-server")?;
        let server = ServerAddress {
            host: host.to_owned(),
            name: name.to_owned(),
        };
        let descriptors = self.context.descriptors(2)?;
        self.context.connect(&vi, &server, "honest")?;
        self.echo = Some(EchoConnection {
            vi,
            descriptors,
            echoed: 0,
        });
        println!("echo-connected");
        Ok(())
    }

    fn echo(&mut self) -> Result<(), Failure> {
        let echo = self.echo.as_mut().ok_or("no echo connection")?;
        if !round_trip(&echo.vi, echo.echoed, &mut echo.descriptors)? {
            return Err("the echo connection is lost".into());
        }
        echo.echoed += 1;
        println!("echoed {}", echo.echoed);
        Ok(())
    }
}

/// Describes the data of a completed receive or read, or its status.
fn content(completed: &Completed) -> String {
    if !completed.status.is_ok() {
        return completed.status.to_string();
    }
    let bytes = match completed.status.operation() {
        // The data is in the registered memory, not in the descriptor.
        CompletedOperation::RemoteRdmaWrite => {
            format!("a write of {} bytes", completed.length_bytes())
        }
        _ => describe(completed.first_bytes()),
    };
    match completed.immediate() {
        Some(immediate) => format!("{bytes} immediate 0x{immediate:08x}"),
        None => bytes,
    }
}

/// Runs one operation of the send queue.
fn operate(session: &mut PeerSession, words: &[&str]) -> Result<(), Failure> {
    match words {
        ["send", serial, bytes, rest @ ..] => {
            let bytes = pattern(number(serial)?, number(bytes)?);
            let completed = session.operate(Operation::Send, &bytes, immediate(rest)?)?;
            println!("sent {}", completed.status);
        }
        ["write", offset, serial, bytes, rest @ ..] => {
            let bytes = pattern(number(serial)?, number(bytes)?);
            let remote = session.remote(number(offset)?);
            let completed =
                session.operate(Operation::RdmaWrite(remote), &bytes, immediate(rest)?)?;
            println!("wrote {}", completed.status);
        }
        ["read", offset, bytes] => {
            let remote = session.remote(number(offset)?);
            let buffer = vec![0; number(bytes)?];
            let completed = session.operate(Operation::RdmaRead(remote), &buffer, None)?;
            println!("read {}", content(&completed));
        }
        _ => return Err("unknown command".into()),
    }
    Ok(())
}
