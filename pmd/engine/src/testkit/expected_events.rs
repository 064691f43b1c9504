//! The events that tests expect of an endpoint.

use vi_types::{AsyncError, Status, ViState};

use super::io::{Event, Received};

/// Returns the completion of a send.
pub(crate) fn sent(id: u64, length_bytes: u32) -> Event {
    Event::Sent(id, Status::OK, length_bytes)
}

/// Returns the completion of a send in error.
pub(crate) fn send_failed(id: u64, status: Status) -> Event {
    Event::Sent(id, status, 0)
}

pub(crate) fn received(id: u64, data: &[u8]) -> Event {
    Event::Received(Received {
        id,
        status: Status::OK,
        length_bytes: data.len() as u32,
        immediate: None,
        remote_write: false,
        data: data.to_vec(),
    })
}

/// Returns a completion in error; placed bytes do not count.
pub(crate) fn receive_failed(id: u64, status: Status) -> Event {
    Event::Received(Received {
        id,
        status,
        length_bytes: 0,
        immediate: None,
        remote_write: false,
        data: Vec::new(),
    })
}

/// Removes the data of failed receives from a log.
pub(crate) fn without_partial_data(log: Vec<Event>) -> Vec<Event> {
    let clean = |event| match event {
        Event::Received(received) if !received.status.is_ok() => Event::Received(Received {
            data: Vec::new(),
            ..received
        }),
        other => other,
    };
    log.into_iter().map(clean).collect()
}

/// Returns the events of a VI with empty queues whose peer disconnected.
pub(crate) fn peer_disconnected_events() -> Vec<Event> {
    vec![
        Event::State(ViState::Error),
        Event::Async(AsyncError::Disconnected),
    ]
}

/// Returns the events of a VI with empty queues whose connection broke.
pub(crate) fn connection_lost_events() -> Vec<Event> {
    vec![
        Event::State(ViState::Error),
        Event::Async(AsyncError::ConnectionLost),
    ]
}
