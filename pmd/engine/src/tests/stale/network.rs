//! A network that remembers. Whatever it was given it may hold for up to R_A_TOV and let arrive
//! again and again; before each frame it looks for older ones that resemble it.

use std::collections::HashMap;

use fcvi_frame::frame::FrameView;

use crate::testkit::rng::Rng;

/// What two frames for one port can have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Likeness {
    /// S_ID, OX_ID, SEQ_ID and SEQ_CNT: all that Fibre Channel tells frames by.
    Identity(u32, u16, u8, u16),
    /// The IU and its OX_ID.
    Exchange(u8, u16),
    /// The message, by its number.
    Message(u8, u32),
    /// The IU and the relative offset.
    Place(u8, u32),
    /// The IU.
    Kind(u8),
}

fn likenesses(bytes: &[u8]) -> Vec<Likeness> {
    let Ok(frame) = FrameView::parse(bytes) else {
        return Vec::new();
    };
    let Ok(iu) = frame.iu() else {
        return Vec::new();
    };
    let fc = &frame.fc;
    let opcode = iu.header.opcode.raw();
    vec![
        Likeness::Identity(fc.s_id.get(), fc.ox_id, fc.seq_id, fc.seq_cnt),
        Likeness::Exchange(opcode, fc.ox_id),
        Likeness::Message(opcode, iu.header.msg_id),
        Likeness::Place(opcode, fc.parameter),
        Likeness::Kind(opcode),
    ]
}

/// The frames of the last R_A_TOV.
pub(super) struct Network {
    rng: Rng,
    r_a_tov_ns: u64,
    /// When each was sent.
    frames: Vec<(u64, Vec<u8>)>,
    alike: HashMap<(usize, Likeness), Vec<usize>>,
}

impl Network {
    pub(super) fn new(seed: u64, r_a_tov_ns: u64) -> Self {
        Self {
            rng: Rng::new(seed ^ 0x57A1E),
            r_a_tov_ns,
            frames: Vec::new(),
            alike: HashMap::new(),
        }
    }

    /// True so many times in a million.
    pub(super) fn chance(&mut self, per_million: u32) -> bool {
        self.rng.chance(per_million)
    }

    /// A frame for this node that may arrive again.
    pub(super) fn remember(&mut self, sent_ns: u64, to: usize, bytes: &[u8]) {
        for likeness in likenesses(bytes) {
            let alike = self.alike.entry((to, likeness)).or_default();
            alike.push(self.frames.len());
        }
        self.frames.push((sent_ns, bytes.to_vec()));
    }

    /// Older frames that resemble this one in something, at most one of each kind of likeness.
    pub(super) fn stale(&mut self, now_ns: u64, to: usize, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut stale: Vec<usize> = Vec::new();
        for likeness in likenesses(bytes) {
            let Some(alike) = self.alike.get(&(to, likeness)) else {
                continue;
            };
            let identical = matches!(likeness, Likeness::Identity(..));
            if !identical && self.rng.below(3) > 0 {
                continue;
            }
            // The newest ones, or any.
            let among = match self.rng.below(2) {
                0 => alike.len().min(4),
                _ => alike.len(),
            };
            let at = alike[alike.len() - 1 - self.rng.below(among as u64) as usize];
            let lives = self.frames[at].0 + self.r_a_tov_ns > now_ns;
            if lives && !stale.contains(&at) {
                stale.push(at);
            }
        }
        let frames = stale.into_iter().map(|at| self.frames[at].1.clone());
        frames.collect()
    }
}
