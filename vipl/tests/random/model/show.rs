//! States in words, for whoever looks for a failure.

use core::fmt;

use super::calls::Verdict;
use super::state::{Cq, Onward, Queue, State};

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
            if let Some(link) = vi.link {
                write!(f, " link {link}")?;
            }
            writeln!(f, " send {} recv {}", vi.send, vi.recv)?;
        }
        for (number, link) in &self.links {
            write!(f, "link {number}")?;
            for (vi, onward) in link.vis.iter().zip(&link.onward) {
                write!(f, " to {vi:#x}:")?;
                for item in onward {
                    match item {
                        Onward::Message(message) => write!(f, " #{}", message.0.id)?,
                        Onward::Answer { id, errors } => write!(f, " answer #{id}:{errors:x}")?,
                        Onward::End => f.write_str(" end")?,
                    }
                }
            }
            writeln!(f)?;
        }
        for (cq, Cq { capacity, groups }) in &self.cqs {
            writeln!(f, "CQ {cq:#x} of {capacity} {groups:x?}")?;
        }
        for (place, ids) in &self.asked {
            writeln!(f, "asked of {place:x?}: {ids:?}")?;
        }
        for (place, calls) in &self.called {
            let calls: Vec<_> = calls.iter().map(|(id, call)| (id, call.name())).collect();
            writeln!(f, "called for {place:x?}: {calls:x?}")?;
        }
        for (number, (message, certain)) in &self.written {
            let (target, length) = (message.0.remote, message.0.length_bytes);
            writeln!(
                f,
                "written #{number} {target:x?} {length:#x} certain: {certain}"
            )?;
        }
        writeln!(f, "told {:x?}", self.told)
    }
}
