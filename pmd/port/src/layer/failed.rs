//! Replacement for a port that failed.

use std::sync::Arc;

use crate::mbuf::{Mbuf, MbufBatch};
use crate::port::{
    AsFutexWord, Capabilities, FutexWord, MacBytes, Port, PortEvent, PortStats, WakeSource,
};
use crate::sync::mapped::{AtomicU32, Ordering};

/// Replaces a port that failed: sends and receives nothing, and wakes no caller.
///
/// It lends no buffer and takes none back: buffers of the failed port are returned to that port
/// before it is closed.
pub struct FailedPort {
    capabilities: Capabilities,
    stats: PortStats,
    wake_word: FutexWord,
}

/// A futex word that only the waker of the sleeping thread changes.
struct OwnWord(AtomicU32);

impl AsFutexWord for OwnWord {
    fn futex_word(&self) -> &AtomicU32 {
        &self.0
    }
}

impl FailedPort {
    /// Creates the replacement of this port, which keeps reporting its properties and statistics.
    pub fn after(failed: &dyn Port) -> Self {
        Self {
            capabilities: failed.capabilities().clone(),
            stats: failed.stats(),
            wake_word: FutexWord::new(Arc::new(OwnWord(AtomicU32::new(0)))),
        }
    }
}

impl Port for FailedPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn alloc(&mut self, _dst: MacBytes) -> Option<Mbuf> {
        None
    }

    fn tx_burst(&mut self, _batch: &mut MbufBatch) -> usize {
        0
    }

    fn rx_burst(&mut self, _batch: &mut MbufBatch, _max: usize) -> usize {
        0
    }

    fn free(&mut self, _mbuf: Mbuf) {}

    fn events(&mut self, _out: &mut Vec<PortEvent>) -> bool {
        false
    }

    fn arm(&mut self) -> WakeSource {
        WakeSource::Futex {
            // Acquire, partner: the change of the word by the waker of the last sleep.
            expected: self.wake_word.word().load(Ordering::Acquire),
            word: self.wake_word.clone(),
        }
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        self.stats.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{LoopbackConfig, LoopbackPort};
    use crate::mbuf::BURST;

    fn frame(port: &mut dyn Port, dst: MacBytes) -> Mbuf {
        let mut mbuf = port.alloc(dst).expect("room");
        mbuf.set_len(60);
        mbuf
    }

    #[test]
    fn failed_port_is_inert_and_keeps_statistics() {
        let config = LoopbackConfig::stations(2);
        let (mut peer, mut port) = LoopbackPort::pair(&config).expect("two stations");
        let (peer_mac, port_mac) = (peer.capabilities().mac, port.capabilities().mac);
        let mut batch = MbufBatch::new();
        for _ in 0..2 {
            batch.push(frame(&mut peer, port_mac)).expect("room");
        }
        peer.tx_burst(&mut batch);
        assert_eq!(port.rx_burst(&mut batch, 1), 1);
        port.free(batch.pop().expect("a frame"));

        let mut failed = FailedPort::after(&port);
        assert_eq!(failed.capabilities(), port.capabilities());
        assert_eq!(failed.stats(), port.stats());
        assert!(failed.alloc(peer_mac).is_none());
        assert_eq!(
            failed.rx_burst(&mut batch, BURST),
            0,
            "one frame is still pending at the failed port"
        );
        assert_eq!(failed.tx_burst(&mut batch), 0);
        assert!(!failed.events(&mut Vec::new()));
        let WakeSource::Futex { word, expected } = failed.arm() else {
            panic!("a sleeper is woken through the futex word");
        };
        assert_eq!(word.word().load(Ordering::Relaxed), expected);
    }
}
