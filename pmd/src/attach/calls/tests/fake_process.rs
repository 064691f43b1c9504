//! Tests with a fake datapath process: a test has both sides of the rings, and determines the replies.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use vi_core::events::{ErrorCode, ResourceCode};
use vi_core::reap::{self, Done};
use vi_core::sync::{AtomicBool, AtomicU32};
use vi_types::{PtagHandle, ReliabilityLevel, ViAttributes, ViParams, status};

use super::*;
use crate::attach::shared_queues::{
    Completed, CompletionEntry, CompletionProducer, OpCode, Submission, SubmissionConsumer, ViId,
};
use crate::lookup::vi_of;

mod nic_handles;

/// The identifier of the VI in the rings.
const VI_ID: ViId = ViId {
    index: 0,
    generation: 1,
};
/// Lines of the submission ring.
const LINES: u32 = 64;

/// Returns the reply to a request; `None`: no reply.
type ReplyFn = dyn Fn(&ProcessState, &Request) -> Option<Reply> + Send + Sync;

/// State of the fake process.
struct ProcessState {
    queues: SharedQueues,
    memory: OwnedFd,
    completions: Mutex<CompletionProducer>,
    submissions: Mutex<SubmissionConsumer>,
    description: Description,
    requests: Mutex<Vec<Request>>,
    reply: Box<ReplyFn>,
    calls: Mutex<Vec<Arc<Socket>>>,
    /// Refuse further call connections.
    refuses_calls: AtomicBool,
    /// While a test holds the lock, the end of an attachment is not acknowledged.
    stopped: Mutex<()>,
    /// Attach requests, and present attachments.
    attach_count: AtomicU32,
    attachments: Mutex<u32>,
    ended: Condvar,
}

impl ProcessState {
    fn report(&self, entry: CompletionEntry) {
        let mut completions = self.completions.lock().unwrap();
        assert!(completions.has_space(&self.queues).unwrap());
        completions.push(&self.queues, VI_ID, entry);
    }

    /// Reports the loss of the connection with this number.
    fn report_loss(&self, connection: u16) {
        let in_connection = OpCode {
            is_orderly: false,
            op_code: 0,
            connection,
        };
        self.report(CompletionEntry::Error {
            code: ErrorCode::ConnLost as u32,
            resource: ResourceCode::Vi as u32,
            op_code: in_connection.word(),
        });
    }

    /// Takes all submissions.
    fn take(&self) -> Vec<Submission> {
        let mut submissions = self.submissions.lock().unwrap();
        let mut all = Vec::new();
        while let Some(submitted) = submissions.peek(&self.queues, 252).unwrap() {
            all.push(submitted.kind);
            submissions.advance(&submitted);
        }
        submissions.release(&self.queues);
        all
    }

    /// Waits for this number of attachments: the end of one is detected with a delay.
    fn wait_for_attachments(&self, wanted: u32) {
        let attachments = self.attachments.lock().unwrap();
        let limit = Duration::from_secs(10);
        let waited = self
            .ended
            .wait_timeout_while(attachments, limit, |count| *count != wanted);
        assert_eq!(*waited.unwrap().0, wanted);
    }

    fn received(&self, request: fn(&Request) -> bool) -> bool {
        self.requests.lock().unwrap().iter().any(request)
    }

    fn serve(&self, socket: Socket) {
        match next(&socket) {
            Some(Request::Attach { .. }) => {
                self.attach_count.fetch_add(1, Ordering::SeqCst);
                *self.attachments.lock().unwrap() += 1;
                let (_wakeup, waker) = sys::WakeupSet::new().unwrap().add_client().unwrap();
                let attached = Reply::Attached {
                    key: [7; 16],
                    nic: Box::new(self.description.clone()),
                };
                let fds = [self.memory.as_raw_fd(), waker.as_raw_fd()];
                socket.send(&Reply::Rings, &fds).unwrap();
                drop(waker);
                assert!(matches!(next(&socket), Some(Request::RingsMapped)));
                socket.send(&attached, &[]).unwrap();
                assert!(next(&socket).is_none());
                drop(self.stopped.lock());
                let mut attachments = self.attachments.lock().unwrap();
                *attachments -= 1;
                self.ended.notify_all();
                if *attachments == 0 {
                    for call in self.calls.lock().unwrap().drain(..) {
                        call.shut_down();
                    }
                }
            }
            Some(Request::Join { .. }) if self.refuses_calls.load(Ordering::SeqCst) => {
                socket.send(&Reply::Refused("no".to_owned()), &[]).unwrap();
            }
            Some(Request::Join { .. }) => {
                let socket = Arc::new(socket);
                self.calls.lock().unwrap().push(Arc::clone(&socket));
                socket.send(&Reply::Done, &[]).unwrap();
                while let Some(request) = next(&socket) {
                    let reply = (self.reply)(self, &request);
                    self.requests.lock().unwrap().push(request);
                    if let Some(reply) = reply {
                        // Fails if the program has closed the connection.
                        let _sent = socket.send(&reply, &[]);
                    }
                }
            }
            _ => {}
        }
    }
}

/// A fake process, which listens at a socket.
struct FakeProcess {
    socket: PathBuf,
    listener: Arc<Listener>,
    state: Arc<ProcessState>,
}

impl FakeProcess {
    fn new(
        test: &str,
        change: impl FnOnce(&mut NicConfig, &mut Quota),
        reply: impl Fn(&ProcessState, &Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let name = format!("viaduct-unit-{}-{test}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = Arc::new(Listener::bind(&socket).unwrap());
        let sizes = RingSizes {
            submissions: LINES,
            completions: 1024,
            inline_buffers: 0,
        };
        let (queues, memory) = SharedQueues::create(sizes).unwrap();
        let mut config = NicConfig {
            name: test.to_owned(),
            ..NicConfig::default()
        };
        let mut quota = Quota::default();
        change(&mut config, &mut quota);
        let state = Arc::new(ProcessState {
            completions: Mutex::new(CompletionProducer::new(&queues)),
            queues,
            memory,
            submissions: Mutex::default(),
            description: Description::of(&config, &quota, 2096),
            requests: Mutex::default(),
            reply: Box::new(reply),
            calls: Mutex::default(),
            refuses_calls: AtomicBool::new(false),
            stopped: Mutex::default(),
            attach_count: AtomicU32::new(0),
            attachments: Mutex::new(0),
            ended: Condvar::new(),
        });
        let (accepting, serving) = (Arc::clone(&listener), Arc::clone(&state));
        std::thread::spawn(move || {
            while let Ok(socket) = accepting.accept() {
                let state = Arc::clone(&serving);
                std::thread::spawn(move || state.serve(socket));
            }
        });
        Self {
            socket,
            listener,
            state,
        }
    }

    fn nic(&self) -> u64 {
        nic::attach(&self.socket, &self.state.description.name).unwrap()
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        self.listener.shut_down();
        // In a directory of temporary files: an error does no harm.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The reply of a process that does what is requested.
fn default_reply(request: &Request) -> Option<Reply> {
    Some(match request {
        Request::CreateVi { .. } => Reply::Handle(RawHandle::pack(HandleKind::Vi, 0, 1, 0)),
        Request::QueryVi { .. } => Reply::Vi {
            state: ViState::Idle,
        },
        Request::Register { .. } => Reply::Region(REGION),
        Request::Open | Request::CreatePtag { .. } => Reply::Handle(1),
        Request::Connect { .. } => Reply::Attributes(ATTRIBUTES),
        _ => Reply::Done,
    })
}

const ATTRIBUTES: ViParams = ViParams {
    level: ReliabilityLevel::UnreliableDelivery,
    max_transfer_bytes: 0,
    rdma_write: false,
    rdma_read: false,
};

fn default_replies(_: &ProcessState, request: &Request) -> Option<Reply> {
    default_reply(request)
}

fn no_change(_: &mut NicConfig, _: &mut Quota) {}

/// A VI on a NIC of the fake process.
struct TestVi {
    nic: u64,
    ptag: u64,
    handle: u64,
    vi: Vi,
}

impl TestVi {
    fn new(nic: u64) -> Self {
        Self::at_level(nic, 2)
    }

    fn at_level(nic: u64, reliability: u16) -> Self {
        let ptag = nic::create_ptag(nic).unwrap();
        let settings = ViAttributes {
            ptag: Some(PtagHandle::from_raw(ptag)),
            reliability,
            max_transfer_bytes: 4096,
            ..ViAttributes::default()
        };
        let handle = nic::create_vi(nic, &settings, 0, 0).unwrap();
        let vi = vi_of(handle).unwrap();
        Self {
            nic,
            ptag,
            handle,
            vi,
        }
    }

    fn connect(&self) -> Outcome<ViParams> {
        let address = address_on(self.nic);
        nic::connect_request(self.handle, &address, &address, None)
    }

    /// Takes the completions that the process has reported.
    fn take_completions(&self) {
        take_completions(self.vi.device);
    }

    /// Does the part of a post that precedes the submission.
    fn publish(&self, queue: QueueKind) {
        let queue = self.vi.queue(queue);
        assert!(queue.post(&mut queue.post_end.lock(), |_| ()));
    }

    fn post_receive(&self) {
        self.publish(QueueKind::Receive);
        self.vi.device.submit(&self.vi);
    }

    fn post_send(&self) {
        self.publish(QueueKind::Send);
        self.vi.device.kick(&self.vi);
    }
}

fn address_on(nic: u64) -> NetAddress {
    NetAddress {
        host: HostAddress(*nic::info(nic).unwrap().host),
        discriminator: Discriminator::new(b"there").unwrap(),
    }
}

/// Returns the result of a call; panics if it does not return in time.
fn result_of<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    result
        .recv_timeout(Duration::from_secs(20))
        .expect("it returns")
}

#[test]
fn disconnect_does_not_wait_for_descriptors_posted_after_it() {
    let process = FakeProcess::new("BEHIND", no_change, default_replies);
    let test_vi = TestVi::new(process.nic());
    test_vi.connect().unwrap();
    test_vi.publish(QueueKind::Receive);
    let handle = test_vi.handle;
    assert_eq!(result_of(move || nic::disconnect(handle)), Ok(()));
    assert_eq!(test_vi.vi.recv.depth(), 1, "on a VI that is Idle");
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn loss_reported_after_a_disconnect_leaves_the_vi_idle_and_the_next_connection_alone() {
    let process = FakeProcess::new("OVERTAKES", no_change, |state, request| {
        if let Request::Disconnect { .. } = request {
            state.report_loss(0);
        }
        default_reply(request)
    });
    let test_vi = TestVi::new(process.nic());
    test_vi.connect().unwrap();
    assert_eq!(test_vi.vi.state(), ViState::Connected);
    nic::disconnect(test_vi.handle).unwrap();
    assert_eq!(test_vi.vi.state(), ViState::Idle);
    test_vi.connect().unwrap();
    // The error was reported late, behind completions for which the ring had no space.
    process.state.report_loss(0);
    test_vi.take_completions();
    assert_eq!(test_vi.vi.state(), ViState::Connected);
    process.state.report_loss(1);
    test_vi.take_completions();
    assert_eq!(test_vi.vi.state(), ViState::Error);
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn connection_lost_before_the_connect_reply_leaves_the_vi_in_error() {
    let process = FakeProcess::new("LOST", no_change, |state, request| {
        if let Request::Connect { .. } = request {
            state.report_loss(0);
        }
        default_reply(request)
    });
    let test_vi = TestVi::new(process.nic());
    assert!(test_vi.connect().is_ok());
    assert_eq!(test_vi.vi.state(), ViState::Error);
    nic::disconnect(test_vi.handle).unwrap();
    assert_eq!(test_vi.vi.state(), ViState::Idle);
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn reply_from_before_a_disconnect_does_not_change_the_state_after_it() {
    let process = FakeProcess::new("BEFORE", no_change, default_replies);
    let test_vi = TestVi::new(process.nic());
    test_vi.connect().unwrap();
    let before = remote_vi(test_vi.vi, test_vi.handle).unwrap();
    nic::disconnect(test_vi.handle).unwrap();
    let state = ViState::Error;
    assert!(!set_replied_state(
        test_vi.vi,
        test_vi.handle,
        before.connection,
        state
    ));
    assert_eq!(test_vi.vi.state(), ViState::Idle);
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn lost_connection_takes_an_unreliable_vi_to_the_error_state() {
    let process = FakeProcess::new("UNRELIABLE", no_change, default_replies);
    let test_vi = TestVi::at_level(process.nic(), 1);
    test_vi.connect().unwrap();
    process.state.report(CompletionEntry::Error {
        code: ErrorCode::RecvqEmpty as u32,
        resource: ResourceCode::Vi as u32,
        op_code: 1,
    });
    test_vi.take_completions();
    assert_eq!(test_vi.vi.state(), ViState::Connected);
    process.state.report_loss(0);
    test_vi.take_completions();
    assert_eq!(test_vi.vi.state(), ViState::Error);
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn receive_is_submitted_when_its_post_returns_although_the_ring_was_full() {
    let process = FakeProcess::new("FULL", no_change, default_replies);
    let test_vi = TestVi::new(process.nic());
    let taken = std::thread::scope(|scope| {
        let posts = scope.spawn(|| (0..LINES + 2).for_each(|_| test_vi.post_receive()));
        while test_vi.vi.recv.posted() <= LINES {
            std::thread::yield_now();
        }
        let taken = process.state.take();
        posts.join().unwrap();
        taken
    });
    let rest = process.state.take();
    assert_eq!(taken.len() + rest.len(), LINES as usize + 2);
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn sleeping_process_is_woken_for_a_late_submission() {
    let process = FakeProcess::new("LATE", no_change, default_replies);
    let test_vi = TestVi::new(process.nic());
    test_vi.connect().unwrap();
    (0..=LINES).for_each(|_| test_vi.post_send());
    let mut taken = {
        let _no_submission = test_vi.vi.device.lock();
        process.state.queues.prepare_process_sleep();
        process.state.take()
    };
    while taken.len() <= LINES as usize {
        test_vi.vi.device.poll();
        taken.extend(process.state.take());
    }
    // A thread that submits wakes the process before it releases the backend lock.
    drop(test_vi.vi.device.lock());
    assert!(!process.state.queues.must_wake_process(), "it was woken");
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn sleeping_process_is_woken_when_the_completion_ring_has_room() {
    const DESCRIPTORS: u32 = 300;
    let process = FakeProcess::new("ROOM", no_change, default_replies);
    let test_vi = TestVi::new(process.nic());
    for _ in 0..DESCRIPTORS {
        test_vi.post_receive();
        process.state.take();
    }
    {
        let _no_completion_taken = test_vi.vi.device.lock();
        process.state.queues.prepare_process_sleep();
        for _ in 0..DESCRIPTORS {
            process.state.report(CompletionEntry::Received(Completed {
                status: status::DONE | status::OP_RECEIVE,
                ..Completed::default()
            }));
        }
    }
    while test_vi.vi.recv.depth() > 0 {
        test_vi.vi.device.poll();
    }
    drop(test_vi.vi.device.lock());
    assert!(!process.state.queues.must_wake_process(), "it was woken");
    nic::close(test_vi.nic).unwrap();
}

/// More than are taken in one poll: the call may end the registration of the memory for the data of the last one.
#[test]
fn call_takes_all_completions_that_were_reported_before_its_reply() {
    const DESCRIPTORS: u32 = 1000;
    let process = FakeProcess::new("ALL", no_change, |state, request| {
        if let Request::DestroyPtag { .. } = request {
            for _ in 0..DESCRIPTORS {
                state.report(CompletionEntry::Received(Completed {
                    status: status::DONE | status::OP_RECEIVE,
                    ..Completed::default()
                }));
            }
        }
        default_reply(request)
    });
    let test_vi = TestVi::new(process.nic());
    for _ in 0..DESCRIPTORS {
        test_vi.post_receive();
        process.state.take();
    }
    let unused = nic::create_ptag(test_vi.nic).unwrap();
    nic::destroy_ptag(test_vi.nic, unused).unwrap();
    assert_eq!(test_vi.vi.recv.depth(), 0);
    nic::close(test_vi.nic).unwrap();
}

/// A delayed poller takes no submissions by itself, however long a post waits; a call makes the process take them.
#[test]
fn post_on_idle_vi_is_flushed_when_it_returns_although_the_poller_is_delayed() {
    let process = FakeProcess::new("HELD-UP", no_change, |state, request| {
        if let Request::QueryVi { .. } = request {
            for submitted in state.take() {
                assert_eq!(submitted, Submission::Send);
                state.report(CompletionEntry::Sent(Completed {
                    status: status::DONE | status::OP_SEND | status::DESC_FLUSHED_ERROR,
                    ..Completed::default()
                }));
            }
        }
        default_reply(request)
    });
    let test_vi = TestVi::new(process.nic());
    let mut descriptor = Box::new(RawDescriptor::default());
    let at = &raw mut *descriptor;
    let settings = MemAttributes {
        ptag: Some(PtagHandle::from_raw(test_vi.ptag)),
        ..MemAttributes::default()
    };
    let bytes = size_of::<RawDescriptor>() as u64;
    let region = register(test_vi.nic, at as u64, bytes, &settings).unwrap();
    post(
        test_vi.handle,
        QueueKind::Send,
        (at, region),
        WhenFull::Break,
    )
    .unwrap();
    assert_eq!(
        reap::reap(&test_vi.vi, test_vi.handle, QueueKind::Send),
        Ok(Done::Completed {
            descriptor: at,
            status: status::DONE | status::OP_SEND | status::DESC_FLUSHED_ERROR,
            context: 0,
        })
    );
    nic::close(test_vi.nic).unwrap();
}

/// The process may reply before it takes the submission.
#[test]
fn vi_with_a_failed_post_is_in_error_whatever_state_the_process_replies() {
    let process = FakeProcess::new("BREAK", no_change, default_replies);
    let test_vi = TestVi::new(process.nic());
    let misaligned = std::ptr::without_provenance_mut(8);
    post(
        test_vi.handle,
        QueueKind::Send,
        (misaligned, 0),
        WhenFull::Break,
    )
    .unwrap();
    let queried = nic::query_vi(test_vi.handle).unwrap().state;
    assert_eq!(queried, ViState::Error);
    assert_eq!(process.state.take(), [Submission::Break]);
    nic::close(test_vi.nic).unwrap();
}
