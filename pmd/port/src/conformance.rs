//! The conformance suite for [`Port`]: runs over every driver and layer.
//!
//! A driver's test calls [`run_all`] with a function that creates two new
//! ports of one segment. Checks run in one thread where possible, so that a
//! failure is reproducible. Frames carry a serial number and a pattern derived
//! from it; that a frame does *not* arrive is shown by a later frame that does,
//! never by waiting.

mod basics;
mod flow;
mod frames;
mod ownership;
mod random;
mod threads;

use crate::port::Port;

/// The only two ports of one segment.
pub type Pair = (Box<dyn Port>, Box<dyn Port>);

/// A named property of a port.
struct Check {
    name: &'static str,
    run: fn(&mut dyn FnMut() -> Pair),
}

macro_rules! checks {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$(Check { name: stringify!($name), run: $module::$name }),*]
    };
}

const CHECKS: &[Check] = checks![
    basics::capabilities_are_sane,
    basics::invalid_addresses_are_rejected,
    basics::empty_bursts_do_nothing,
    basics::every_length_arrives_byte_for_byte,
    basics::bursts_arrive_in_order_both_ways,
    basics::received_bursts_respect_max_and_room,
    basics::statistics_add_up,
    basics::unknown_destinations_do_not_affect_others,
    basics::frames_to_own_address_are_delivered_or_counted,
    flow::freed_unsent_buffers_are_never_sent,
    flow::freeing_unsent_buffers_leaks_nothing,
    flow::received_buffers_keep_their_bytes_until_freed_in_any_order,
    flow::full_receiver_blocks_the_sender_and_recovers,
    flow::unsent_frames_stay_in_the_batch_in_order,
    flow::departed_station_does_not_block_the_sender,
    ownership::buffers_outlive_their_port,
    random::random_operations_match_queue_model,
    threads::two_threads_stream_both_ways,
    threads::arm_and_poll_lose_no_wakeup,
    threads::arm_without_sleep_has_no_effect,
];

/// Runs every check over pairs that `make` opens; `name` is printed with each check.
/// An idle pair must have buffers for 128 frames of minimum length in each direction.
///
/// # Panics
/// If the driver fails a check; the check's name is in the line printed before.
pub fn run_all(name: &str, make: &mut dyn FnMut() -> Pair) {
    for check in CHECKS {
        eprintln!("conformance of {name}: {}", check.name);
        (check.run)(make);
    }
}
