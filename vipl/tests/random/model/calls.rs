//! Results and effects of each call.
//!
//! If several arguments of a call are invalid, the guide does not specify the error: a [`Verdict`] has all valid ones.

use std::rc::Rc;

use vi_types::QueueKind;
use vipl::{MemAttributes, ViAttributes, ViState, VipError};

use super::descriptor::{DecodedPost, Posted, errors};
use super::state::{AsyncError, Bytes, Completion, Connection, Entry, Item, State, Vi, cq_of};
use super::tables::{Tables, ViFacts};

/// The valid errors of a call; none if it must succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict(Vec<VipError>);

impl Verdict {
    pub(crate) fn refuse_if(mut self, refused: bool, error: VipError) -> Self {
        if refused && !self.0.contains(&error) {
            self.0.push(error);
        }
        self
    }

    pub(super) fn errors(&self) -> &[VipError] {
        &self.0
    }

    pub(crate) fn fits<T>(&self, outcome: &Result<T, VipError>) -> bool {
        match outcome {
            Ok(_) => self.0.is_empty(),
            Err(error) => self.0.contains(error),
        }
    }
}

/// Result of a Done or Wait call on a work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DoneResult {
    /// No descriptor is posted.
    Empty,
    /// The oldest descriptor is not complete.
    Pending,
    Completed {
        address: u64,
        status: u32,
        /// Control segment in memory after the call.
        control: [u8; 32],
    },
}

impl Tables {
    fn is_open(&self, end: usize, nic: u64) -> bool {
        self.ends[end].nics.contains(&nic)
    }

    fn nic_verdict(&self, end: usize, nic: u64) -> Verdict {
        Verdict::default().refuse_if(!self.is_open(end, nic), VipError::InvalidParameter)
    }

    /// Calls whose only argument is a NIC handle (VIPL 3.1.2, 3.7.1).
    pub(crate) fn on_nic(&self, end: usize, nic: u64) -> Verdict {
        self.nic_verdict(end, nic)
    }

    /// VIPL 3.4.1.
    pub(crate) fn create_tag(&self, end: usize, nic: u64) -> Verdict {
        let full = self.ends[end].tags.len() >= self.limits.tags;
        self.nic_verdict(end, nic)
            .refuse_if(full, VipError::ErrorResource)
    }

    /// VIPL 3.4.2.
    pub(crate) fn destroy_tag(&self, end: usize, nic: u64, tag: u64) -> Verdict {
        let known = self.ends[end].tags.contains_key(&tag);
        self.nic_verdict(end, nic)
            .refuse_if(!known, VipError::InvalidParameter)
            .refuse_if(self.tag_in_use(end, tag) && known, VipError::ErrorResource)
    }

    /// VIPL 3.4.3.
    pub(crate) fn register(
        &self,
        (end, nic): (usize, u64),
        length_bytes: u64,
        attributes: &MemAttributes,
        mapped: bool,
    ) -> Verdict {
        let table = &self.ends[end];
        let tag = attributes.ptag.map_or(0, |tag| tag.into_raw());
        let reads = self.limits.rdma_read_levels != 0;
        self.nic_verdict(end, nic)
            .refuse_if(length_bytes == 0 || !mapped, VipError::InvalidParameter)
            .refuse_if(!table.tags.contains_key(&tag), VipError::InvalidPtag)
            .refuse_if(attributes.rdma_read && !reads, VipError::InvalidRdmaRead)
            .refuse_if(
                table.regions.len() >= self.limits.regions,
                VipError::ErrorResource,
            )
    }

    /// Calls on a region by handle and address (VIPL 3.4.4, 3.7.5).
    pub(crate) fn on_region(&self, (end, nic): (usize, u64), address: u64, handle: u32) -> Verdict {
        let region = self.ends[end].regions.get(&handle);
        let known = region.is_some_and(|region| region.address == address);
        self.nic_verdict(end, nic)
            .refuse_if(!known, VipError::InvalidParameter)
    }

    /// VIPL 3.6.1.
    pub(crate) fn create_cq(&self, (end, nic): (usize, u64), entries: u64) -> Verdict {
        let existing = self.cqs.values().filter(|cq| cq.end == end).count();
        self.nic_verdict(end, nic)
            .refuse_if(entries == 0, VipError::InvalidParameter)
            .refuse_if(entries > self.limits.cq_entries, VipError::ErrorResource)
            .refuse_if(existing >= self.limits.cqs, VipError::ErrorResource)
    }

    /// VIPL 3.6.2.
    pub(crate) fn destroy_cq(&self, cq: u64) -> Verdict {
        Verdict::default()
            .refuse_if(!self.cqs.contains_key(&cq), VipError::InvalidParameter)
            .refuse_if(self.attached(cq), VipError::ErrorResource)
    }

    /// VIPL 3.2.1.
    pub(crate) fn create_vi(
        &self,
        (end, nic): (usize, u64),
        attributes: &ViAttributes,
        cqs: [Option<u64>; 2],
    ) -> Verdict {
        let existing = self.vis.values().filter(|vi| vi.end == end).count();
        let unknown = |cq: u64| self.cqs.get(&cq).is_none_or(|cq| cq.end != end);
        self.vi_attributes(self.nic_verdict(end, nic), end, attributes)
            .refuse_if(
                cqs.into_iter().flatten().any(unknown),
                VipError::InvalidParameter,
            )
            .refuse_if(existing >= self.limits.vis, VipError::ErrorResource)
    }

    /// Adds the errors of VI attributes to a verdict (VIPL 3.2.1, 3.7.2).
    pub(super) fn vi_attributes(
        &self,
        verdict: Verdict,
        end: usize,
        attributes: &ViAttributes,
    ) -> Verdict {
        let level = attributes.reliability;
        let is_level_supported = level.is_power_of_two() && level & self.limits.levels != 0;
        let are_reads_supported = level & self.limits.rdma_read_levels != 0;
        let size = attributes.max_transfer_bytes;
        let tag = attributes.ptag.map_or(0, |tag| tag.into_raw());
        verdict
            .refuse_if(!is_level_supported, VipError::InvalidReliabilityLevel)
            .refuse_if(
                size == 0 || size > self.limits.transfer_bytes,
                VipError::InvalidMtu,
            )
            .refuse_if(attributes.qos != 0, VipError::InvalidQos)
            .refuse_if(
                !self.ends[end].tags.contains_key(&tag),
                VipError::InvalidPtag,
            )
            .refuse_if(
                attributes.rdma_read && !are_reads_supported,
                VipError::InvalidRdmaRead,
            )
    }

    /// The attributes that must match for a connection (VIPL 3.3.2).
    pub(crate) fn conflicts(ours: &ViAttributes, theirs: &ViAttributes) -> Verdict {
        Verdict::default()
            .refuse_if(
                ours.reliability != theirs.reliability,
                VipError::InvalidReliabilityLevel,
            )
            .refuse_if(
                ours.max_transfer_bytes != theirs.max_transfer_bytes,
                VipError::InvalidMtu,
            )
            .refuse_if(ours.qos != theirs.qos, VipError::InvalidQos)
    }
}

/// Returns whether a completed descriptor matches its expected completion (VIPL 5.2, 5.5).
pub(crate) fn completion_matches(
    posted: &Posted,
    completion: &Completion,
    status: u32,
    control: &[u8; 32],
) -> bool {
    const DONE: u32 = 1;
    const IMMEDIATE: u32 = 1 << 19;
    const RESERVED: u32 = 0xFFF0_0000;
    let word = |at: usize| {
        u32::from_le_bytes([
            control[at],
            control[at + 1],
            control[at + 2],
            control[at + 3],
        ])
    };
    let found = status & errors::ALL;
    let errors_match = if completion.errors == 0 {
        found == 0
    } else {
        found & !errors::PARTIAL != 0 && found & !(completion.errors | errors::PARTIAL) == 0
    };
    let operation = completion
        .operation
        .is_none_or(|operation| status >> 16 & 7 == operation);
    let immediate = status & IMMEDIATE != 0;
    let word_fits = status & DONE != 0
        && status & RESERVED == 0
        && errors_match
        && operation
        && immediate == completion.immediate.is_some();
    if completion.lost {
        return word_fits && *control == posted.control;
    }
    // The link to the next descriptor is unspecified (VIPL 5.2).
    word_fits
        && word(28) == status
        && control[12..20] == posted.control[12..20]
        && match completion.immediate {
            Some(immediate) => word(20) == immediate,
            None => control[20..24] == posted.control[20..24],
        }
        && completion
            .length_bytes
            .is_none_or(|length| word(24) == length)
}

impl State {
    /// VIPL 3.5.1, 3.5.4; the call itself always succeeds.
    pub(crate) fn post(
        mut self,
        tables: &Tables,
        vi: u64,
        kind: QueueKind,
        decoded: &DecodedPost,
    ) -> Self {
        let (code, resource, descriptor) = match decoded {
            DecodedPost::Readable(posted) => {
                let full = self.vis[&vi].queue(kind).items.len() >= tables.limits.queue_descriptors;
                if !full {
                    self.take_post(tables, vi, kind, posted);
                    return self;
                }
                (
                    vipl::ErrorCode::ViOverrun,
                    vipl::ResourceCode::Vi,
                    posted.address,
                )
            }
            DecodedPost::Unreadable { address } => (
                vipl::ErrorCode::PostDesc,
                vipl::ResourceCode::Descriptor,
                *address,
            ),
        };
        self.report_error(AsyncError {
            vi,
            code: code as u32,
            resource: resource as u32,
            descriptor,
        });
        self.vi_mut(vi).broken = true;
        self
    }

    fn take_post(&mut self, tables: &Tables, vi: u64, kind: QueueKind, posted: &Rc<Posted>) {
        let found = self.vi_mut(vi);
        found.queue_mut(kind).items.push_back(Item {
            posted: Bytes(Rc::clone(posted)),
            sent: false,
            ready: None,
            done: None,
        });
        let at_once = match kind {
            QueueKind::Send => found.state != ViState::Connected,
            QueueKind::Receive => found.state == ViState::Error,
        };
        if at_once {
            // Descriptors that are posted in a state without processing are flushed (VIPL 2.4, 3.3.5).
            self.flush_queue(tables, vi, kind);
        }
    }

    /// VIPL 3.5.2, 3.5.5; returns the state after this result, or `None` if it is not possible.
    pub(crate) fn reaped(&self, vi: u64, kind: QueueKind, result: &DoneResult) -> Option<Self> {
        let head = self.vis[&vi].queue(kind).items.front();
        match (head, result) {
            (None, DoneResult::Empty) => Some(self.clone()),
            (Some(Item { done: None, .. }), DoneResult::Pending) => Some(self.clone()),
            (
                Some(Item {
                    posted,
                    done: Some(completion),
                    ..
                }),
                DoneResult::Completed {
                    address,
                    status,
                    control,
                },
            ) if posted.0.address == *address
                && completion_matches(&posted.0, completion, *status, control) =>
            {
                let mut state = self.clone();
                state.vi_mut(vi).queue_mut(kind).items.pop_front();
                Some(state)
            }
            _ => None,
        }
    }

    /// VIPL 3.5.7; `result` is `None` without an entry.
    pub(crate) fn entry_taken(&self, cq: u64, result: Option<(u64, QueueKind)>) -> Vec<Self> {
        let taken = self.take_entry(cq);
        let Some(result) = result else {
            return if taken.is_empty() {
                vec![self.clone()]
            } else {
                Vec::new()
            };
        };
        let fits = |entry: &Entry| (entry.vi, entry.kind) == result;
        taken
            .into_iter()
            .filter(|(entry, _)| fits(entry))
            .map(|(_, state)| state)
            .collect()
    }

    /// VIPL 3.2.2.
    pub(crate) fn destroy_vi(&self, vi: u64) -> Verdict {
        let found = &self.vis[&vi];
        let busy = found.state != ViState::Idle
            || !found.send.items.is_empty()
            || !found.recv.items.is_empty();
        Verdict::default().refuse_if(busy, VipError::InvalidState)
    }

    /// VIPL 3.3.5: legal in every state.
    pub(crate) fn disconnect(&mut self, tables: &Tables, vi: u64) {
        self.leave_connection(tables, vi);
        let pending = self.pool().find(|(waiting, _)| *waiting == vi);
        self.withdrawn.extend(pending.map(|(_, id)| id));
        let found = self.vi_mut(vi);
        found.state = ViState::Idle;
        found.broken = false;
        found.connecting = None;
        found.peer = None;
        found.pending_reads.clear();
        self.flush(tables, vi);
        // An error of the flush was reported; the VI is Idle nevertheless.
        self.vi_mut(vi).broken = false;
    }

    /// VipCloseNic releases the VIs of the NIC handle (VIPL 3.1.2).
    pub(crate) fn release_vi(&mut self, tables: &Tables, vi: u64) {
        self.disconnect(tables, vi);
        self.vis.remove(&vi);
        self.async_errors.retain(|error, _| error.vi != vi);
    }

    /// Marks data of a VI in transit as lossy: its NIC was closed.
    pub(crate) fn mark_lossy(&mut self, vi: u64) {
        for connection in self.connections.values_mut() {
            if let Some(at) = connection.vis.iter().position(|of| *of == vi) {
                connection.is_lossy[1 - at] = true;
            }
        }
    }

    pub(crate) fn create_vi(&mut self, tables: &Tables, vi: u64) {
        self.vis.insert(vi, Vi::new());
        let facts = &tables.vis[&vi];
        for cq in [facts.send_cq, facts.recv_cq].into_iter().flatten() {
            self.attach(tables, cq);
        }
    }

    /// A request has arrived at the server: the client waits (VIPL 3.3.4).
    pub(crate) fn start_connect(&mut self, vi: u64, conn: u64) {
        let found = self.vi_mut(vi);
        found.state = ViState::ConnectPending;
        found.connecting = Some(conn);
        found.peer = None;
    }

    /// The client's request ends without a connection.
    pub(crate) fn fail_connect(&mut self, vi: u64) {
        let found = self.vi_mut(vi);
        found.state = ViState::Idle;
        found.connecting = None;
    }

    /// Two VIs are connected.
    pub(crate) fn connect(&mut self, connection: u64, vis: [u64; 2]) {
        for vi in vis {
            let found = self.vi_mut(vi);
            found.state = ViState::Connected;
            found.connecting = None;
            found.peer = None;
            found.connection = Some(connection);
        }
        let in_transit = Default::default();
        let is_lossy = [false; 2];
        self.connections.insert(
            connection,
            Connection {
                vis,
                in_transit,
                is_lossy,
            },
        );
    }

    /// VIPL 3.3.2; a client that no longer waits is a timeout.
    pub(crate) fn accept(&self, tables: &Tables, conn: u64, vi: u64) -> Verdict {
        let request = &tables.requests[&conn];
        let is_waiting = self
            .vis
            .get(&request.client)
            .is_some_and(|client| client.connecting == Some(conn));
        let busy = self.vis[&vi].state != ViState::Idle;
        let facts: &ViFacts = &tables.vis[&vi];
        Tables::conflicts(&facts.attributes, &request.attributes)
            .refuse_if(busy, VipError::InvalidState)
            .refuse_if(!is_waiting, VipError::Timeout)
    }

    /// VIPL 3.5.3: a wait on a work queue with a completion queue is an error.
    pub(crate) fn may_wait(tables: &Tables, vi: u64, kind: QueueKind) -> Verdict {
        let attached = cq_of(&tables.vis[&vi], kind).is_some();
        Verdict::default().refuse_if(attached, VipError::ErrorResource)
    }
}
