//! A program that talks over one connection after the other as its input says, a line each.
//!
//! | line | what is done | what is told |
//! | --- | --- | --- |
//! | `connect HOST NAME`, `accept NAME`, `meet HOST NAME` | a VI is connected: as client, as server, as a peer | `connected`, what was agreed, or what the call returned |
//! | `advertise` | the peer is told where the memory is | `advertised` |
//! | `learn` | takes a message that tells where the peer's memory is | `learned` |
//! | `post COUNT` | posts more receives | `posted` |
//! | `send SERIAL BYTES [IMMEDIATE]` | sends a message | `sent`, and its status |
//! | `sends COUNT BYTES` | posts so many sends, and waits for none | `posted` |
//! | `sent COUNT` | waits for them | `sent`, and the status of each |
//! | `write OFFSET SERIAL BYTES [IMMEDIATE]` | writes to the peer's memory | `wrote`, and its status |
//! | `read OFFSET BYTES` | reads from there | `read`, and what came or its status |
//! | `take` | waits for a message | `took`, and what came or its status |
//! | `holds OFFSET BYTES` | looks at the memory | `holds`, and what is there |
//! | `fill OFFSET SERIAL BYTES` | fills the memory | `filled` |
//! | `attend` | answers probes until the connection is lost | `ended`, and how |
//! | `end` | ends the connection | `ended`, and how |
//! | `befriend HOST NAME` | has another connection, with a server that sends everything back | `befriended` |
//! | `greet` | sends a message there and back on it | `greeted` |

use std::io::{self, BufRead};

use vipl::{
    Completed, CompletedOperation, Descriptor, NetAddress, Operation, ReliabilityLevel, Timeout, Vi,
};

use crate::echo::{name_of, round_trip};
use crate::party::{Party, Shape, describe, pattern};
use crate::station::{Station, TIMEOUT};
use crate::{Failure, Server};

/// What the program calls itself.
const OWN: &str = "obedient";

/// The other connection.
struct Friend {
    vi: Vi,
    descriptors: Vec<Descriptor>,
    greeted: u64,
}

struct Talk<'a> {
    station: &'a Station,
    shape: &'a Shape,
    party: Option<Party>,
    friend: Option<Friend>,
}

/// Obeys until the input ends.
pub(crate) fn obey(nic: &str, shape: &Shape) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    println!("ready");
    let mut talk = Talk {
        station: &station,
        shape,
        party: None,
        friend: None,
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        talk.obey(&words)
            .map_err(|error| format!("{line}: {error}"))?;
    }
    drop(talk);
    station.finish()
}

fn number<T: TryFrom<u64>>(word: &str) -> Result<T, Failure> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => word.parse()?,
    };
    T::try_from(parsed).map_err(|_| format!("{word} is too much").into())
}

fn immediate(words: &[&str]) -> Result<Option<u32>, Failure> {
    words.first().map(|word| number(word)).transpose()
}

impl Talk<'_> {
    fn obey(&mut self, words: &[&str]) -> Result<(), Failure> {
        match words {
            ["connect" | "accept" | "meet", ..] => return self.begin(words),
            ["befriend", host, name] => return self.befriend(host, name),
            ["greet"] => return self.greet(),
            ["attend" | "end"] => return self.end(words == ["attend"]),
            _ => {}
        }
        let party = self.party.as_mut().ok_or("nobody is connected")?;
        match words {
            ["advertise"] => {
                party.advertise()?;
                println!("advertised");
            }
            ["learn"] => {
                let place = party.receive(TIMEOUT)?.ok_or("nothing came")?;
                party.learn(place.first_bytes())?;
                println!("learned");
            }
            ["post", count] => {
                party.post(number(count)?, self.shape.receive_bytes())?;
                println!("posted");
            }
            ["sends", count, bytes] => {
                for serial in 0..number(count)? {
                    party.begin(Operation::Send, &pattern(serial, number(bytes)?), None)?;
                }
                println!("posted");
            }
            ["sent", count] => {
                for _ in 0..number(count)? {
                    println!("sent {}", party.wait()?.status);
                }
            }
            ["take"] => {
                let taken = party.receive(TIMEOUT)?.ok_or("nothing came")?;
                println!("took {}", content(&taken));
            }
            ["holds", offset, bytes] => {
                let memory = party.memory(number(offset)?, number(bytes)?);
                println!("holds {}", describe(&memory));
            }
            ["fill", offset, serial, bytes] => {
                party.fill(number(offset)?, &pattern(number(serial)?, number(bytes)?));
                println!("filled");
            }
            _ => return operate(party, words),
        }
        Ok(())
    }

    fn begin(&mut self, words: &[&str]) -> Result<(), Failure> {
        let (nic, ptag) = (self.station.nic(), self.station.ptag());
        let told = (self.station.names(), self.station.events());
        let party = Party::new((nic, ptag), told, self.shape, OWN)?;
        let local = nic.local_address(OWN.as_bytes())?;
        let remote = |host: &str, name: &str| nic.remote_address(host, name.as_bytes());
        let outcome = match words {
            ["connect", host, name] => {
                let remote: NetAddress = remote(host, name)?;
                party
                    .vi
                    .connect(&local, &remote, Timeout::After(TIMEOUT))
                    .map(drop)
            }
            ["accept", name] => {
                let local = nic.local_address(name.as_bytes())?;
                let mut request = nic.connect_wait(&local, Timeout::After(TIMEOUT))?;
                let security = String::from_utf8_lossy(&request.security()?).into_owned();
                println!("asked by {} security {security:?}", name_of(&request));
                request.accept(&party.vi)
            }
            ["meet", host, name] => {
                let remote = remote(host, name)?;
                party
                    .vi
                    .connect_peer(&local, &remote, Timeout::After(TIMEOUT))?;
                println!("meeting");
                party.vi.connect_peer_wait().map(drop)
            }
            _ => return Err("no such command".into()),
        };
        match outcome {
            Ok(()) => {
                let agreed = party.vi.agreement()?;
                println!(
                    "connected mtu {} flow-control {} security {:?}",
                    agreed.max_transfer_bytes,
                    agreed.flow_control,
                    String::from_utf8_lossy(&agreed.security)
                );
                self.party = Some(party);
            }
            Err(error) => println!("connected {error:?}"),
        }
        Ok(())
    }

    fn end(&mut self, attends: bool) -> Result<(), Failure> {
        let mut party = self.party.take().ok_or("nobody is connected")?;
        if attends {
            party.attend(|| false)?;
        }
        println!("ended {}", party.end(attends)?);
        Ok(())
    }

    fn befriend(&mut self, host: &str, name: &str) -> Result<(), Failure> {
        let vi = (self.station).vi(ReliabilityLevel::ReliableDelivery, "friend")?;
        let server = Server {
            host: host.to_owned(),
            name: name.to_owned(),
        };
        let descriptors = self.station.descriptors(2)?;
        self.station.connect(&vi, &server, "honest")?;
        self.friend = Some(Friend {
            vi,
            descriptors,
            greeted: 0,
        });
        println!("befriended");
        Ok(())
    }

    fn greet(&mut self) -> Result<(), Failure> {
        let friend = self.friend.as_mut().ok_or("there is no friend")?;
        if !round_trip(&friend.vi, friend.greeted, &mut friend.descriptors)? {
            return Err("the friend is lost".into());
        }
        friend.greeted += 1;
        println!("greeted {}", friend.greeted);
        Ok(())
    }
}

/// What a completed receive or read has brought.
fn content(completed: &Completed) -> String {
    if !completed.status.is_ok() {
        return completed.status.to_string();
    }
    let bytes = match completed.status.operation() {
        // They are where the writer wanted them.
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

/// Does one operation of the send queue.
fn operate(party: &mut Party, words: &[&str]) -> Result<(), Failure> {
    match words {
        ["send", serial, bytes, rest @ ..] => {
            let bytes = pattern(number(serial)?, number(bytes)?);
            let done = party.operate(Operation::Send, &bytes, immediate(rest)?)?;
            println!("sent {}", done.status);
        }
        ["write", offset, serial, bytes, rest @ ..] => {
            let bytes = pattern(number(serial)?, number(bytes)?);
            let there = party.at(number(offset)?);
            let done = party.operate(Operation::RdmaWrite(there), &bytes, immediate(rest)?)?;
            println!("wrote {}", done.status);
        }
        ["read", offset, bytes] => {
            let there = party.at(number(offset)?);
            let room = vec![0; number(bytes)?];
            let done = party.operate(Operation::RdmaRead(there), &room, None)?;
            println!("read {}", content(&done));
        }
        _ => return Err("no such command".into()),
    }
    Ok(())
}
