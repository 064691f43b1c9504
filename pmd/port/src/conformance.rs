//! What every [`Port`] must do, as one suite that runs over every driver and layer.
//!
//! A driver's test calls [`run_all`] with a function that makes two fresh
//! ports of one segment. Checks run in one thread where they can, so that a
//! failure repeats. Frames carry a serial number and a pattern made from it;
//! that something does *not* arrive is shown by a later frame that does, never
//! by waiting.

mod basics;
mod flow;
mod frames;
mod ownership;
mod random;
mod threads;

use crate::port::Port;

/// Two ports of one segment, and nobody else on it.
pub type Pair = (Box<dyn Port>, Box<dyn Port>);

/// One named property of a port.
struct Check {
    name: &'static str,
    run: fn(&mut dyn FnMut() -> Pair),
}

macro_rules! checks {
    ($($room:ident :: $name:ident),* $(,)?) => {
        &[$(Check { name: stringify!($name), run: $room::$name }),*]
    };
}

const CHECKS: &[Check] = checks![
    basics::capabilities_are_sane,
    basics::impossible_addresses_are_refused,
    basics::empty_bursts_do_nothing,
    basics::every_length_arrives_byte_for_byte,
    basics::bursts_arrive_in_order_both_ways,
    basics::received_bursts_respect_max_and_room,
    basics::statistics_add_up,
    basics::unknown_destinations_cost_nobody_anything,
    basics::frames_to_oneself_are_delivered_or_counted,
    flow::freed_unsent_buffers_are_never_sent,
    flow::freeing_unsent_buffers_leaks_nothing,
    flow::received_buffers_keep_their_bytes_until_freed_in_any_order,
    flow::a_full_receiver_holds_up_the_sender_and_recovers,
    flow::what_was_not_taken_stays_in_the_batch_in_order,
    flow::a_departed_station_blocks_nobody,
    ownership::buffers_outlive_their_port,
    random::random_operations_agree_with_a_queue,
    threads::two_threads_stream_both_ways,
    threads::arming_and_looking_never_loses_a_wake,
    threads::arming_without_sleeping_changes_nothing,
];

/// Runs every check over pairs that `make` opens; `name` is printed with each of them.
/// An idle pair must have room for 128 frames of the least length each way.
///
/// # Panics
/// When the driver fails a check; the name of the check stands in the line printed before.
pub fn run_all(name: &str, make: &mut dyn FnMut() -> Pair) {
    for check in CHECKS {
        eprintln!("conformance of {name}: {}", check.name);
        (check.run)(make);
    }
}
