//! Replaces `pmd/core/src/sync.rs` in the models: the same items with loom's atomics.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::thread::yield_now;

use loom::sync::{Condvar, Mutex};

/// A flag. Its stores are exchanges: loom would let an exchange of another thread that precedes a store in time miss
/// it and still follow it in modification order, so that a released lock stays taken. What a load may see, and what
/// it orders, is unchanged.
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}

loom::thread_local! {
    static MARK: u64 = 0;
}

/// Returns a number that no other running thread has: a multiple of 8, never 0.
pub(crate) fn thread_number() -> u64 {
    MARK.with(|mark| core::ptr::from_ref(mark) as u64)
}

/// Both sides of the asymmetric barrier are full fences.
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// The partner of [`light_barrier`].
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}

/// The time, which no model depends on.
pub(crate) fn monotonic_ns() -> u64 {
    0
}

/// The kernel's futex queue, for the one futex word of a model.
struct Futex {
    /// The sleeping threads, each with its events.
    sleepers: Mutex<Vec<(u64, u32)>>,
    woken: Condvar,
}

loom::lazy_static! {
    static ref FUTEX: Futex = Futex {
        sleepers: Mutex::new(Vec::new()),
        woken: Condvar::new(),
    };
}

/// Sleeps until one of these events, unless the word does not hold `expected`. There is no timeout: a lost wake-up is
/// a sleep without end, which loom reports.
pub(crate) fn futex_wait_for(
    word: &AtomicU32,
    expected: u32,
    _timeout_ns: Option<u64>,
    events: u32,
) {
    let me = thread_number();
    let mut sleepers = FUTEX.sleepers.lock().expect("no thread panics");
    if word.load(Ordering::SeqCst) != expected {
        return;
    }
    sleepers.push((me, events));
    while sleepers.iter().any(|(thread, _)| *thread == me) {
        sleepers = FUTEX.woken.wait(sleepers).expect("no thread panics");
    }
}

/// Wakes the threads that sleep for one of these events; returns their number.
pub(crate) fn futex_wake_for(_word: &AtomicU32, events: u32) -> usize {
    let mut sleepers = FUTEX.sleepers.lock().expect("no thread panics");
    let before = sleepers.len();
    sleepers.retain(|(_, wanted)| wanted & events == 0);
    FUTEX.woken.notify_all();
    before - sleepers.len()
}

/// Memory that an application polls. Each aligned word is one loom atomic; a store to a part of a word stores the whole
/// word. There is one writer.
pub(crate) mod application {
    use std::cell::RefCell;
    use std::rc::Rc;

    use loom::sync::atomic::{AtomicU64 as Word, Ordering};

    const WORDS: usize = 4;
    /// Bytes of the memory.
    pub(crate) const BYTES: usize = 8 * WORDS;

    /// Provides the address of the memory; it is never written.
    static AREA: [core::sync::atomic::AtomicU64; WORDS] =
        [const { core::sync::atomic::AtomicU64::new(0) }; WORDS];

    /// The bytes that the writer wrote, and the loom atomics that other threads read.
    struct Memory {
        written: RefCell<[u8; BYTES]>,
        words: [Word; WORDS],
    }

    thread_local! {
        /// The memory of the running model: loom runs all its threads on one system thread.
        static MEMORY: RefCell<Option<Rc<Memory>>> = const { RefCell::new(None) };
    }

    /// Begins a run of a model: all bytes are zero.
    pub(crate) fn clear() {
        let memory = Rc::new(Memory {
            written: RefCell::new([0; BYTES]),
            words: core::array::from_fn(|_| Word::new(0)),
        });
        MEMORY.with(|current| *current.borrow_mut() = Some(memory));
    }

    fn memory() -> Rc<Memory> {
        MEMORY.with(|memory| memory.borrow().clone().expect("the model called `clear`"))
    }

    /// The address of the memory.
    pub(crate) fn start() -> u64 {
        AREA.as_ptr() as u64
    }

    /// Reads all words, the one at `first` before the others and with this order.
    pub(crate) fn load(first: usize, order: Ordering) -> [u8; BYTES] {
        let memory = memory();
        let seen = memory.words[first].load(order);
        let mut bytes = [0; BYTES];
        for (at, to) in bytes.chunks_exact_mut(8).enumerate() {
            let word = if at == first {
                seen
            } else {
                memory.words[at].load(Ordering::Relaxed)
            };
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Stores bytes within one aligned word, without a load before: loom does not explore other threads between a load
    /// and a store of the same word.
    fn store(address: u64, bytes: &[u8], order: Ordering) {
        let offset = (address - start()) as usize;
        let memory = memory();
        let word = {
            let mut written = memory.written.borrow_mut();
            written[offset..offset + bytes.len()].copy_from_slice(bytes);
            let (words, _) = written.as_chunks::<8>();
            u64::from_ne_bytes(words[offset / 8])
        };
        memory.words[offset / 8].store(word, order);
    }

    /// As [`core::ptr::copy_nonoverlapping`], into the memory.
    ///
    /// # Safety
    /// `count` bytes can be read at `from`.
    pub(crate) unsafe fn copy_nonoverlapping(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: passed on from our caller.
        let bytes = unsafe { core::slice::from_raw_parts(from, count) };
        for (at, byte) in (to as u64..).zip(bytes) {
            store(at, &[*byte], Ordering::Relaxed);
        }
    }

    macro_rules! atomics {
        ($($name:ident: $integer:ty),*) => {$(
            /// A part of the memory.
            #[repr(transparent)]
            pub(crate) struct $name(core::sync::atomic::$name);

            impl $name {
                /// # Safety
                /// As for the standard library's.
                pub(crate) unsafe fn from_ptr<'a>(at: *mut $integer) -> &'a Self {
                    // SAFETY: a transparent wrapper of a type that has the integer's layout.
                    unsafe { &*at.cast() }
                }

                pub(crate) fn store(&self, value: $integer, order: Ordering) {
                    store(core::ptr::from_ref(self) as u64, &value.to_ne_bytes(), order);
                }
            }
        )*};
    }
    atomics!(AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);
}
