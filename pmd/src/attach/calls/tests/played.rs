//! A datapath process that a test plays: it has both ends of the rings, and answers as it says.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::attach::arena::{Completed, OpCode, Submission, Taker, Teller, Told, ViName};
use crate::attach::message::Attributes;
use crate::descriptor::status;
use crate::events::{ErrorCode, ResourceCode};
use crate::sync::{AtomicBool, AtomicU32};
use crate::vi::vi_of;

mod openings;

/// The VI, as the process calls it.
const NAME: ViName = ViName {
    index: 0,
    generation: 1,
};
/// Lines of the submission ring.
const LINES: u32 = 64;

/// The answer to a request; `None`: it waits for ever.
type Answer = dyn Fn(&Stage, &Request) -> Option<Reply> + Send + Sync;

/// What the process has.
struct Stage {
    arena: Arena,
    memory: OwnedFd,
    teller: Mutex<Teller>,
    taker: Mutex<Taker>,
    description: Description,
    asked: Mutex<Vec<Request>>,
    answer: Box<Answer>,
    calls: Mutex<Vec<Arc<Socket>>>,
    /// Another conversation is refused.
    refuses: AtomicBool,
    /// Locked by a test, the end of an attachment is not acknowledged.
    stopped: Mutex<()>,
    /// How often a program attached, and how many are.
    attached: AtomicU32,
    lives: Mutex<u32>,
    ended: Condvar,
}

impl Stage {
    fn tell(&self, told: Told) {
        let mut teller = self.teller.lock().unwrap();
        assert!(teller.has_room(&self.arena).unwrap());
        teller.tell(&self.arena, NAME, told);
    }

    /// The connection of this number is lost.
    fn tell_loss(&self, connection: u16) {
        let in_connection = OpCode {
            is_orderly: false,
            op_code: 0,
            connection,
        };
        self.tell(Told::Error {
            code: ErrorCode::ConnLost as u32,
            resource: ResourceCode::Vi as u32,
            op_code: in_connection.word(),
        });
    }

    /// Takes all that is submitted.
    fn take(&self) -> Vec<Submission> {
        let mut taker = self.taker.lock().unwrap();
        let mut all = Vec::new();
        while let Some(submitted) = taker.peek(&self.arena, 252).unwrap() {
            all.push(submitted.what);
            taker.advance(&submitted);
        }
        taker.give_back(&self.arena);
        all
    }

    /// Waits until so many programs are attached: what a library ends, it hears of in its own time.
    fn await_lives(&self, wanted: u32) {
        let lives = self.lives.lock().unwrap();
        let limit = Duration::from_secs(10);
        let waited = self
            .ended
            .wait_timeout_while(lives, limit, |lives| *lives != wanted);
        assert_eq!(*waited.unwrap().0, wanted);
    }

    fn was_asked(&self, request: fn(&Request) -> bool) -> bool {
        self.asked.lock().unwrap().iter().any(request)
    }

    fn converse(&self, socket: Socket) {
        match next(&socket) {
            Some(Request::Attach { .. }) => {
                self.attached.fetch_add(1, Ordering::SeqCst);
                *self.lives.lock().unwrap() += 1;
                let (_wakeup, theirs) = sys::WakeupSet::new().unwrap().add_client().unwrap();
                let attached = Reply::Attached {
                    key: [7; 16],
                    nic: Box::new(self.description.clone()),
                };
                let fds = [self.memory.as_raw_fd(), theirs.as_raw_fd()];
                socket.send(&Reply::Rings, &fds).unwrap();
                drop(theirs);
                assert!(matches!(next(&socket), Some(Request::RingsMapped)));
                socket.send(&attached, &[]).unwrap();
                assert!(next(&socket).is_none());
                drop(self.stopped.lock());
                let mut lives = self.lives.lock().unwrap();
                *lives -= 1;
                self.ended.notify_all();
                if *lives == 0 {
                    for call in self.calls.lock().unwrap().drain(..) {
                        call.shut_down();
                    }
                }
            }
            Some(Request::Join { .. }) if self.refuses.load(Ordering::SeqCst) => {
                socket.send(&Reply::Refused("no".to_owned()), &[]).unwrap();
            }
            Some(Request::Join { .. }) => {
                let socket = Arc::new(socket);
                self.calls.lock().unwrap().push(Arc::clone(&socket));
                socket.send(&Reply::Done, &[]).unwrap();
                while let Some(request) = next(&socket) {
                    let reply = (self.answer)(self, &request);
                    self.asked.lock().unwrap().push(request);
                    if let Some(reply) = reply {
                        // Who asked may be gone.
                        let _heard = socket.send(&reply, &[]);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The process, where a program can attach to it.
struct Played {
    socket: PathBuf,
    listener: Arc<Listener>,
    stage: Arc<Stage>,
}

impl Played {
    fn new(
        test: &str,
        change: impl FnOnce(&mut NicConfig, &mut Quota),
        answer: impl Fn(&Stage, &Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let name = format!("viaduct-unit-{}-{test}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = Arc::new(Listener::bind(&socket).unwrap());
        let sizes = RingSizes {
            submissions: LINES,
            completions: 1024,
        };
        let (arena, memory) = Arena::create(sizes).unwrap();
        let mut config = NicConfig {
            name: test.to_owned(),
            ..NicConfig::default()
        };
        let mut quota = Quota::default();
        change(&mut config, &mut quota);
        let stage = Arc::new(Stage {
            arena,
            memory,
            teller: Mutex::default(),
            taker: Mutex::default(),
            description: Description::of(&config, &quota, 2096),
            asked: Mutex::default(),
            answer: Box::new(answer),
            calls: Mutex::default(),
            refuses: AtomicBool::new(false),
            stopped: Mutex::default(),
            attached: AtomicU32::new(0),
            lives: Mutex::new(0),
            ended: Condvar::new(),
        });
        let (listens, serves) = (Arc::clone(&listener), Arc::clone(&stage));
        std::thread::spawn(move || {
            while let Ok(socket) = listens.accept() {
                let stage = Arc::clone(&serves);
                std::thread::spawn(move || stage.converse(socket));
            }
        });
        Self {
            socket,
            listener,
            stage,
        }
    }

    fn nic(&self) -> u64 {
        nic::attach(&self.socket, &self.stage.description.name).unwrap()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.listener.shut_down();
        // It is in a directory for temporary files.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What a process answers that has nothing else in mind.
fn usual(request: &Request) -> Option<Reply> {
    Some(match request {
        Request::CreateVi { .. } => Reply::Handle(RawHandle::pack(Kind::Vi, 0, 1, 0)),
        Request::QueryVi { .. } => Reply::Vi {
            state: EndpointState::Idle as u8,
        },
        Request::Register { .. } => Reply::Region(REGION),
        Request::Open | Request::CreatePtag { .. } => Reply::Handle(1),
        Request::Connect { .. } => {
            Reply::Attributes(Attributes::from(connect::Attributes::default()))
        }
        _ => Reply::Done,
    })
}

fn as_usual(_: &Stage, request: &Request) -> Option<Reply> {
    usual(request)
}

fn no_change(_: &mut NicConfig, _: &mut Quota) {}

/// A VI on a NIC.
struct End {
    nic: u64,
    ptag: u64,
    handle: u64,
    vi: &'static ViShared,
}

impl End {
    fn new(nic: u64) -> Self {
        Self::at_level(nic, 2)
    }

    fn at_level(nic: u64, reliability: u16) -> Self {
        let ptag = nic::create_ptag(nic).unwrap();
        let settings = ViSettings {
            ptag,
            reliability,
            max_transfer_bytes: 4096,
            ..ViSettings::default()
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

    fn connect(&self) -> Outcome<connect::Attributes> {
        let address = address_on(self.nic);
        nic::connect_request(self.handle, &address, &address, None)
    }

    /// Takes what the process told.
    fn listen(&self) {
        listen(self.vi.device);
    }

    /// What a post has done when it is about to submit.
    fn publish(&self, queue: Queue) {
        let queue = self.vi.queue(queue);
        assert!(queue.post(&mut queue.post_end.hold(), |_| ()));
    }

    fn post_receive(&self) {
        self.publish(Queue::Receive);
        self.vi.device.submit(self.vi);
    }

    fn post_send(&self) {
        self.publish(Queue::Send);
        self.vi.device.kick(self.vi);
    }
}

fn address_on(nic: u64) -> connect::NetAddress {
    connect::NetAddress {
        host: HostAddress(*nic::info(nic).unwrap().host),
        discriminator: connect::Discriminator::new(b"there").unwrap(),
    }
}

/// What a call gives that may never return.
fn result_of<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(call()));
    told.recv_timeout(Duration::from_secs(20))
        .expect("it returns")
}

#[test]
fn a_disconnect_does_not_wait_for_what_is_submitted_after_it() {
    let process = Played::new("BEHIND", no_change, as_usual);
    let end = End::new(process.nic());
    end.connect().unwrap();
    end.publish(Queue::Receive);
    let handle = end.handle;
    assert_eq!(result_of(move || nic::disconnect(handle)), Ok(()));
    assert_eq!(end.vi.recv.depth(), 1, "on a VI that is Idle");
    nic::close(end.nic).unwrap();
}

#[test]
fn a_loss_that_a_disconnect_overtakes_leaves_the_vi_idle_and_the_next_connection_alone() {
    let process = Played::new("OVERTAKES", no_change, |stage, request| {
        if let Request::Disconnect { .. } = request {
            stage.tell_loss(0);
        }
        usual(request)
    });
    let end = End::new(process.nic());
    end.connect().unwrap();
    assert_eq!(end.vi.state(), EndpointState::Connected);
    nic::disconnect(end.handle).unwrap();
    assert_eq!(end.vi.state(), EndpointState::Idle);
    end.connect().unwrap();
    // It waited behind completions that there was no room for.
    process.stage.tell_loss(0);
    end.listen();
    assert_eq!(end.vi.state(), EndpointState::Connected);
    process.stage.tell_loss(1);
    end.listen();
    assert_eq!(end.vi.state(), EndpointState::Error);
    nic::close(end.nic).unwrap();
}

#[test]
fn a_connection_that_is_lost_before_its_answer_is_heard_is_lost() {
    let process = Played::new("LOST", no_change, |stage, request| {
        if let Request::Connect { .. } = request {
            stage.tell_loss(0);
        }
        usual(request)
    });
    let end = End::new(process.nic());
    assert!(end.connect().is_ok());
    assert_eq!(end.vi.state(), EndpointState::Error);
    nic::disconnect(end.handle).unwrap();
    assert_eq!(end.vi.state(), EndpointState::Idle);
    nic::close(end.nic).unwrap();
}

#[test]
fn an_answer_from_before_a_disconnect_says_nothing_of_the_vi_after_it() {
    let process = Played::new("BEFORE", no_change, as_usual);
    let end = End::new(process.nic());
    end.connect().unwrap();
    let asked = remote_vi(end.vi, end.handle).unwrap();
    nic::disconnect(end.handle).unwrap();
    let state = EndpointState::Error;
    assert!(!hear(end.vi, end.handle, asked.connection, state));
    assert_eq!(end.vi.state(), EndpointState::Idle);
    nic::close(end.nic).unwrap();
}

#[test]
fn the_loss_of_its_connection_breaks_an_unreliable_vi_too() {
    let process = Played::new("UNRELIABLE", no_change, as_usual);
    let end = End::at_level(process.nic(), 1);
    end.connect().unwrap();
    process.stage.tell(Told::Error {
        code: ErrorCode::RecvqEmpty as u32,
        resource: ResourceCode::Vi as u32,
        op_code: 1,
    });
    end.listen();
    assert_eq!(end.vi.state(), EndpointState::Connected);
    process.stage.tell_loss(0);
    end.listen();
    assert_eq!(end.vi.state(), EndpointState::Error);
    nic::close(end.nic).unwrap();
}

#[test]
fn a_receive_is_in_the_ring_when_its_post_returns_also_if_the_ring_was_full() {
    let process = Played::new("FULL", no_change, as_usual);
    let end = End::new(process.nic());
    let taken = std::thread::scope(|scope| {
        let posts = scope.spawn(|| (0..LINES + 2).for_each(|_| end.post_receive()));
        while end.vi.recv.posted() <= LINES {
            std::thread::yield_now();
        }
        let taken = process.stage.take();
        posts.join().unwrap();
        taken
    });
    let rest = process.stage.take();
    assert_eq!(taken.len() + rest.len(), LINES as usize + 2);
    nic::close(end.nic).unwrap();
}

#[test]
fn a_process_that_sleeps_is_woken_for_what_is_submitted_late() {
    let process = Played::new("LATE", no_change, as_usual);
    let end = End::new(process.nic());
    end.connect().unwrap();
    (0..=LINES).for_each(|_| end.post_send());
    let mut taken = {
        let _nobody_submits = end.vi.device.hold();
        process.stage.arena.process_lies_down();
        process.stage.take()
    };
    while taken.len() <= LINES as usize {
        end.vi.device.poll();
        taken.extend(process.stage.take());
    }
    // Whoever submits, wakes before it lets go of the turn.
    drop(end.vi.device.hold());
    assert!(!process.stage.arena.must_wake_process(), "it was woken");
    nic::close(end.nic).unwrap();
}

#[test]
fn a_process_that_sleeps_is_woken_when_the_completion_ring_has_room() {
    const DESCRIPTORS: u32 = 300;
    let process = Played::new("ROOM", no_change, as_usual);
    let end = End::new(process.nic());
    for _ in 0..DESCRIPTORS {
        end.post_receive();
        process.stage.take();
    }
    {
        let _nobody_listens = end.vi.device.hold();
        process.stage.arena.process_lies_down();
        for _ in 0..DESCRIPTORS {
            process.stage.tell(Told::Received(Completed {
                status: status::DONE | status::OP_RECEIVE,
                ..Completed::default()
            }));
        }
    }
    while end.vi.recv.depth() > 0 {
        end.vi.device.poll();
    }
    drop(end.vi.device.hold());
    assert!(!process.stage.arena.must_wake_process(), "it was woken");
    nic::close(end.nic).unwrap();
}

/// A poller that is held up takes nothing of its own accord, however long a post waits; a call has it taken.
#[test]
fn post_on_idle_vi_is_flushed_when_it_returns_though_the_poller_is_held_up() {
    let process = Played::new("HELD-UP", no_change, |stage, request| {
        if let Request::QueryVi { .. } = request {
            for submitted in stage.take() {
                assert_eq!(submitted, Submission::Send);
                stage.tell(Told::Sent(Completed {
                    status: status::DONE | status::OP_SEND | status::DESC_FLUSHED_ERROR,
                    ..Completed::default()
                }));
            }
        }
        usual(request)
    });
    let end = End::new(process.nic());
    let mut descriptor = Box::new(RawDescriptor::default());
    let at = &raw mut *descriptor;
    let settings = MemSettings {
        ptag: end.ptag,
        ..MemSettings::default()
    };
    let bytes = size_of::<RawDescriptor>() as u64;
    let region = register(end.nic, at as u64, bytes, &settings).unwrap();
    post(end.handle, Queue::Send, (at, region), WhenFull::Break).unwrap();
    assert_eq!(
        work::reap(end.vi, end.handle, Queue::Send),
        Ok(Done::Completed {
            descriptor: at,
            status: status::DONE | status::OP_SEND | status::DESC_FLUSHED_ERROR,
            context: 0,
        })
    );
    nic::close(end.nic).unwrap();
}

/// The process may answer before it takes what the program submitted.
#[test]
fn vi_that_a_post_broke_is_in_error_whatever_the_process_answers() {
    let process = Played::new("BREAK", no_change, as_usual);
    let end = End::new(process.nic());
    let misaligned = std::ptr::without_provenance_mut(8);
    post(end.handle, Queue::Send, (misaligned, 0), WhenFull::Break).unwrap();
    let answered = nic::query_vi(end.handle).unwrap().state;
    assert_eq!(answered, EndpointState::Error);
    assert_eq!(process.stage.take(), [Submission::Break]);
    nic::close(end.nic).unwrap();
}
