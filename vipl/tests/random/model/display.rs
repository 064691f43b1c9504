//! Text of states, for the analysis of violations.

use core::fmt;

use super::calls::Verdict;
use super::state::{Cq, Queue, State, Transit};

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            f.write_str("success")
        } else {
            write!(f, "one of {:?}", self.errors())
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for item in &self.items {
            let id = item.posted.0.id;
            match &item.done {
                None if item.sent => write!(f, " #{id} in flight")?,
                None => write!(f, " #{id}")?,
                Some(done) => write!(
                    f,
                    " #{id}:{:x}/{:x?}{}",
                    done.errors,
                    done.length_bytes,
                    if done.lost { " lost" } else { "" }
                )?,
            }
        }
        f.write_str(" ]")
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (handle, vi) in &self.vis {
            let broken = if vi.broken { " broken" } else { "" };
            write!(f, "VI {handle:#x} {:?}{broken}", vi.state)?;
            if let Some(peer) = &vi.peer {
                write!(f, " peer #{} {:?}", peer.id, peer.stage)?;
            }
            if let Some(connection) = vi.connection {
                write!(f, " connection {connection}")?;
            }
            writeln!(f, " send {} recv {}", vi.send, vi.recv)?;
        }
        for (number, connection) in &self.connections {
            write!(f, "connection {number}")?;
            for (vi, in_transit) in connection.vis.iter().zip(&connection.in_transit) {
                write!(f, " to {vi:#x}:")?;
                for item in in_transit {
                    match item {
                        Transit::Message(message) => write!(f, " #{}", message.0.id)?,
                        Transit::Response { id, errors } => {
                            write!(f, " response #{id}:{errors:x}")?
                        }
                        Transit::Disconnect => f.write_str(" disconnect")?,
                    }
                }
            }
            writeln!(f)?;
        }
        for (cq, Cq { capacity, groups }) in &self.cqs {
            writeln!(f, "CQ {cq:#x} of {capacity} {groups:x?}")?;
        }
        for (queue, ids) in &self.handlers {
            writeln!(f, "handlers of {queue:x?}: {ids:?}")?;
        }
        for (queue, calls) in &self.expected_calls {
            let calls: Vec<_> = calls.iter().map(|(id, call)| (id, call.name())).collect();
            writeln!(f, "expected calls for {queue:x?}: {calls:x?}")?;
        }
        for (number, (message, certain)) in &self.written {
            let (target, length) = (message.0.remote, message.0.length_bytes);
            writeln!(
                f,
                "written #{number} {target:x?} {length:#x} certain: {certain}"
            )?;
        }
        writeln!(f, "asynchronous errors {:x?}", self.async_errors)
    }
}
