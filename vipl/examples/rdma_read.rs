//! RDMA reads between two VIs of one program, at Reliable Reception: the reader reads a table row by row, with several
//! reads in flight, while the target makes no call; a fenced write then notifies the target that the table was read.
//!
//! ```text
//! cargo run --release -p vipl --example rdma_read
//! ```

mod common;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use common::{exit_code, print};
use vipl::{
    Completed, Descriptor, Nic, Operation, RdmaAccess, ReliabilityLevel, RemoteBuffer, Timeout,
    VipError,
};

const DISCRIMINATOR: &[u8] = b"rdma-read";
const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(10));
const ROWS: usize = 8;
const ROW_BYTES: usize = 1024;
/// Offset of the word after the table that the reader sets when it has finished.
const DONE_OFFSET_BYTES: usize = ROWS * ROW_BYTES;
const DONE: u64 = 0x646F_6E65;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the completed descriptor of a queue; fails if there is none or its status is an error.
fn check_completed(head: Option<Completed>) -> Outcome<Completed> {
    head.ok_or("the queue is empty")?
        .ok()
        .map_err(|failed| failed.status.to_string().into())
}

fn with_buffer(mut descriptor: Descriptor, buffer: vipl::Buffer) -> Outcome<Descriptor> {
    descriptor
        .push(buffer)
        .map_err(|_| "a descriptor without a segment")?;
    Ok(descriptor)
}

/// Registers a table for reads, sends its address to the peer, and waits until it was read.
fn target() -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let access = RdmaAccess {
        write: true,
        read: true,
    };
    let table = nic.create_rdma_region(DONE_OFFSET_BYTES + 8, &ptag, access)?;
    for row in 0..ROWS {
        table.write(row * ROW_BYTES, &[row as u8; ROW_BYTES]);
    }
    let vi = nic
        .vi(&ptag)
        .reliability(ReliabilityLevel::ReliableReception)
        .rdma_read(true)
        .rdma_write(true)
        .build()?;
    let mut request = nic.connect_wait(&nic.local_address(DISCRIMINATOR)?, TIMEOUT)?;
    request.accept(&vi)?;

    let mut buffer = nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer();
    buffer.copy_from_slice(&table.remote_buffer().to_bytes());
    let message = nic
        .create_descriptors(1, 1, &ptag)?
        .pop()
        .ok_or("no descriptor")?;
    vi.post_send(with_buffer(message, buffer)?)?;
    check_completed(vi.send_wait(TIMEOUT)?)?;

    // Reads and the write complete without a call by this thread.
    while table.load_u64(DONE_OFFSET_BYTES) != DONE {
        std::hint::spin_loop();
    }
    print(format_args!("target: the reader has finished"))?;
    Ok(())
}

/// Receives the address of the table and reads all of it.
fn reader() -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let vi = nic
        .vi(&ptag)
        .reliability(ReliabilityLevel::ReliableReception)
        .build()?;
    let mut descriptors = nic.create_descriptors(ROWS + 2, 1, &ptag)?.into_iter();
    let mut next = || descriptors.next().ok_or("too few descriptors");
    let buffer = nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer();
    vi.post_recv(with_buffer(next()?, buffer)?)?;
    let (local, remote) = (
        nic.local_address(b"reader")?,
        nic.local_address(DISCRIMINATOR)?,
    );
    while let Err(error) = vi.connect(&local, &remote, TIMEOUT) {
        // The target does not listen yet.
        if error != VipError::NoMatch {
            return Err(error.into());
        }
        std::thread::yield_now();
    }
    let message = check_completed(vi.recv_wait(TIMEOUT)?)?;
    let table = RemoteBuffer::from_bytes(message.first_bytes().try_into()?);

    for row in 0..ROWS {
        let buffer = nic.create_region(ROW_BYTES, &ptag)?.into_buffer();
        let mut read = with_buffer(next()?, buffer)?;
        read.set_operation(Operation::RdmaRead(table.at((row * ROW_BYTES) as u64)));
        vi.post_send(read)?;
    }
    let mut word = nic.create_region(8, &ptag)?.into_buffer();
    word.copy_from_slice(&DONE.to_ne_bytes());
    let mut done = with_buffer(next()?, word)?;
    done.set_operation(Operation::RdmaWrite(table.at(DONE_OFFSET_BYTES as u64)));
    // The write starts after all reads are complete.
    done.set_fence(true);
    vi.post_send(done)?;

    for row in 0..ROWS {
        let read = check_completed(vi.send_wait(TIMEOUT)?)?;
        if *read.descriptor.buffer(0) != [row as u8; ROW_BYTES] {
            return Err(format!("row {row}: unexpected data").into());
        }
    }
    // At Reliable Reception the data of a completed write is in the target's memory.
    check_completed(vi.send_wait(TIMEOUT)?)?;
    print(format_args!(
        "reader: {ROWS} rows of {ROW_BYTES} bytes were read"
    ))?;
    Ok(())
}

fn run() -> Outcome<()> {
    std::thread::scope(|scope| {
        let target = scope.spawn(target);
        let result = reader();
        // An error of the target may be the cause of one here.
        target.join().map_err(|_| "the target panicked")??;
        result
    })
}

fn main() -> ExitCode {
    exit_code(
        "rdma_read",
        run().map_err(|error| -> Box<dyn Error> { error }),
    )
}
