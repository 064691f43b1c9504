//! What is left of a port that failed.

use std::sync::Arc;

use crate::mbuf::{Mbuf, MbufBatch};
use crate::port::{
    AsFutexWord, Capabilities, FutexWord, MacBytes, Port, PortEvent, PortStats, WakeSource,
};
use crate::sync::mapped::{AtomicU32, Ordering};

/// Takes the place of a port that failed: nothing comes, nothing goes, nobody is woken.
///
/// It lends no buffer and takes none back: what the failed port lent goes back to that one,
/// before it is closed.
pub struct FailedPort {
    capabilities: Capabilities,
    stats: PortStats,
    wake_word: FutexWord,
}

/// A word that only whoever gets the sleeper up changes.
struct OwnWord(AtomicU32);

impl AsFutexWord for OwnWord {
    fn futex_word(&self) -> &AtomicU32 {
        &self.0
    }
}

impl FailedPort {
    /// What takes the place of this port, and goes on telling what it is and has counted.
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
            // Acquire, partner: whoever got the last sleeper up by changing the word.
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
    fn nothing_comes_or_goes_and_what_was_counted_stays() {
        let config = LoopbackConfig::stations(2);
        let (mut near, mut far) = LoopbackPort::pair(&config).expect("two stations");
        let (near_mac, far_mac) = (near.capabilities().mac, far.capabilities().mac);
        let mut batch = MbufBatch::new();
        for _ in 0..2 {
            batch.push(frame(&mut near, far_mac)).expect("room");
        }
        near.tx_burst(&mut batch);
        assert_eq!(far.rx_burst(&mut batch, 1), 1);
        far.free(batch.pop().expect("a frame"));

        let mut failed = FailedPort::after(&far);
        assert_eq!(failed.capabilities(), far.capabilities());
        assert_eq!(failed.stats(), far.stats());
        assert!(failed.alloc(near_mac).is_none());
        assert_eq!(
            failed.rx_burst(&mut batch, BURST),
            0,
            "one still waits there"
        );
        assert_eq!(failed.tx_burst(&mut batch), 0);
        assert!(!failed.events(&mut Vec::new()));
        let WakeSource::Futex { word, expected } = failed.arm() else {
            panic!("a sleeper is got up by its own process");
        };
        assert_eq!(word.word().load(Ordering::Relaxed), expected);
    }
}
