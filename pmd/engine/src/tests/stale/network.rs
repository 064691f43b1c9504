//! A network that keeps every frame for up to R_A_TOV and may deliver it repeatedly; before each frame it finds similar
//! older ones.

use std::collections::HashMap;

use fcvi_frame::frame::FrameView;

use crate::testkit::rng::Rng;

/// Properties that two frames to one port can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Similarity {
    /// S_ID, OX_ID, SEQ_ID and SEQ_CNT: the complete identity of a frame in Fibre Channel.
    Identity(u32, u16, u8, u16),
    /// The IU and its OX_ID.
    Exchange(u8, u16),
    /// The IU and the message ID.
    Message(u8, u32),
    /// The IU and the relative offset.
    Offset(u8, u32),
    /// The IU.
    Opcode(u8),
}

fn similarities(bytes: &[u8]) -> Vec<Similarity> {
    let Ok(frame) = FrameView::parse(bytes) else {
        return Vec::new();
    };
    let Ok(iu) = frame.iu() else {
        return Vec::new();
    };
    let fc = &frame.fc;
    let opcode = iu.header.opcode.raw();
    vec![
        Similarity::Identity(fc.s_id.get(), fc.ox_id, fc.seq_id, fc.seq_cnt),
        Similarity::Exchange(opcode, fc.ox_id),
        Similarity::Message(opcode, iu.header.msg_id),
        Similarity::Offset(opcode, fc.parameter),
        Similarity::Opcode(opcode),
    ]
}

/// The network, with the frames that were sent.
pub(super) struct Network {
    rng: Rng,
    r_a_tov_ns: u64,
    /// Time at which each was sent, and its bytes.
    frames: Vec<(u64, Vec<u8>)>,
    similar: HashMap<(usize, Similarity), Vec<usize>>,
}

impl Network {
    pub(super) fn new(seed: u64, r_a_tov_ns: u64) -> Self {
        Self {
            rng: Rng::new(seed ^ 0x57A1E),
            r_a_tov_ns,
            frames: Vec::new(),
            similar: HashMap::new(),
        }
    }

    /// Returns true with a probability of `per_million` in a million.
    pub(super) fn chance(&mut self, per_million: u32) -> bool {
        self.rng.chance(per_million)
    }

    /// Keeps a frame to this node, which may be delivered again.
    pub(super) fn record(&mut self, sent_ns: u64, to: usize, bytes: &[u8]) {
        for similarity in similarities(bytes) {
            let similar = self.similar.entry((to, similarity)).or_default();
            similar.push(self.frames.len());
        }
        self.frames.push((sent_ns, bytes.to_vec()));
    }

    /// Returns older frames that are similar to this one, at most one for each kind of similarity.
    pub(super) fn stale(&mut self, now_ns: u64, to: usize, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut stale: Vec<usize> = Vec::new();
        for similarity in similarities(bytes) {
            let Some(similar) = self.similar.get(&(to, similarity)) else {
                continue;
            };
            let identical = matches!(similarity, Similarity::Identity(..));
            if !identical && self.rng.below(3) > 0 {
                continue;
            }
            // The newest ones, or any.
            let among = match self.rng.below(2) {
                0 => similar.len().min(4),
                _ => similar.len(),
            };
            let at = similar[similar.len() - 1 - self.rng.below(among as u64) as usize];
            let lives = self.frames[at].0 + self.r_a_tov_ns > now_ns;
            if lives && !stale.contains(&at) {
                stale.push(at);
            }
        }
        let frames = stale.into_iter().map(|at| self.frames[at].1.clone());
        frames.collect()
    }
}
