//! A program that sees the last bytes of an RDMA write sees all others, on a processor that reorders stores, too.

use loom::sync::atomic::Ordering;
use loom::thread;

use crate::copy;
use crate::explore;
use crate::sync::application;

/// Writes ones by frames of these lengths, one after the other from an offset on, while another thread reads the last
/// byte and then all others.
fn check_last_byte_implies_all(offset: usize, frames: &'static [usize]) {
    explore(3, move || {
        application::clear();
        let writer = thread::spawn(move || {
            let mut to = application::start() + offset as u64;
            for bytes in frames {
                // SAFETY: inside the memory, to which loom's stores go.
                unsafe { copy::write_in_order(to, &[0xFF; application::BYTES][..*bytes]) };
                to += *bytes as u64;
            }
        });
        let end = offset + frames.iter().sum::<usize>();
        // Acquire: partner of the Release store of the last bytes.
        let seen = application::load((end - 1) / 8, Ordering::Acquire);
        if seen[end - 1] == 0xFF {
            assert_eq!(&seen[offset..end], &[0xFF; application::BYTES][offset..end]);
        }
        writer.join().expect("the writer ends");
        let seen = application::load(0, Ordering::Relaxed);
        assert_eq!(&seen[offset..end], &[0xFF; application::BYTES][offset..end]);
    });
}

#[test]
fn last_word_is_seen_after_the_words_before() {
    check_last_byte_implies_all(0, &[24]);
    check_last_byte_implies_all(5, &[19]);
}

#[test]
fn bytes_behind_the_last_word_are_seen_after_it() {
    check_last_byte_implies_all(0, &[12]);
    check_last_byte_implies_all(3, &[20]);
    check_last_byte_implies_all(0, &[15]);
}

#[test]
fn part_of_a_word_is_seen_after_earlier_frames() {
    check_last_byte_implies_all(0, &[8, 4]);
    check_last_byte_implies_all(0, &[10, 3]);
    check_last_byte_implies_all(0, &[13, 3]);
}
