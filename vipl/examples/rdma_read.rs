//! RDMA reads between two VIs of one program, at Reliable Reception: the reader fetches a table row by row, several reads
//! at a time, while the target's program takes no part; a fenced write tells the target that all of it has been read.
//!
//! ```text
//! cargo run --release -p vipl --example rdma_read
//! ```

mod common;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use common::{end, print};
use vipl::{
    Completed, Descriptor, Nic, Operation, RdmaAccess, ReliabilityLevel, RemoteBuffer, Timeout,
    VipError,
};

const DISCRIMINATOR: &[u8] = b"rdma-read";
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));
const ROWS: usize = 8;
const ROW_BYTES: usize = 1024;
/// Behind the table: where the reader says that it is done.
const DONE_OFFSET_BYTES: usize = ROWS * ROW_BYTES;
const DONE: u64 = 0x646F_6E65;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn collected(head: Option<Completed>) -> Outcome<Completed> {
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

/// Offers a table for reading, tells the peer where it is, and waits until it was read.
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
    let mut request = nic.connect_wait(&nic.local_address(DISCRIMINATOR)?, PATIENCE)?;
    request.accept(&vi)?;

    let mut place = nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer();
    place.copy_from_slice(&table.remote_buffer().to_bytes());
    let tell = nic
        .create_descriptors(1, 1, &ptag)?
        .pop()
        .ok_or("one descriptor was asked for")?;
    vi.post_send(with_buffer(tell, place)?)?;
    collected(vi.send_wait(PATIENCE)?)?;

    // Nothing is called here: reads and the write are served all the same.
    while table.load_u64(DONE_OFFSET_BYTES) != DONE {
        std::hint::spin_loop();
    }
    print(format_args!("target: the reader says that it is done"))?;
    Ok(())
}

/// Learns where the table is and reads all of it.
fn reader() -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let vi = nic
        .vi(&ptag)
        .reliability(ReliabilityLevel::ReliableReception)
        .build()?;
    let mut descriptors = nic.create_descriptors(ROWS + 2, 1, &ptag)?.into_iter();
    let mut next = || descriptors.next().ok_or("a descriptor for each row");
    let place = nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer();
    vi.post_recv(with_buffer(next()?, place)?)?;
    let (local, remote) = (
        nic.local_address(b"reader")?,
        nic.local_address(DISCRIMINATOR)?,
    );
    while let Err(error) = vi.connect(&local, &remote, PATIENCE) {
        // The target does not wait yet.
        if error != VipError::NoMatch {
            return Err(error.into());
        }
        std::thread::yield_now();
    }
    let told = collected(vi.recv_wait(PATIENCE)?)?;
    let table = RemoteBuffer::from_bytes(told.first_bytes().try_into()?);

    for row in 0..ROWS {
        let room = nic.create_region(ROW_BYTES, &ptag)?.into_buffer();
        let mut read = with_buffer(next()?, room)?;
        read.set_operation(Operation::RdmaRead(table.at((row * ROW_BYTES) as u64)));
        vi.post_send(read)?;
    }
    let mut word = nic.create_region(8, &ptag)?.into_buffer();
    word.copy_from_slice(&DONE.to_ne_bytes());
    let mut done = with_buffer(next()?, word)?;
    done.set_operation(Operation::RdmaWrite(table.at(DONE_OFFSET_BYTES as u64)));
    // Not before every read is complete.
    done.set_fence(true);
    vi.post_send(done)?;

    for row in 0..ROWS {
        let read = collected(vi.send_wait(PATIENCE)?)?;
        if *read.descriptor.buffer(0) != [row as u8; ROW_BYTES] {
            return Err(format!("row {row} is not what the target wrote").into());
        }
    }
    // At Reliable Reception a completed write has been placed.
    collected(vi.send_wait(PATIENCE)?)?;
    print(format_args!(
        "reader: {ROWS} rows of {ROW_BYTES} bytes were read"
    ))?;
    Ok(())
}

fn run() -> Outcome<()> {
    std::thread::scope(|scope| {
        let target = scope.spawn(target);
        let outcome = reader();
        // An error there may be the cause of one here.
        target.join().map_err(|_| "the target panicked")??;
        outcome
    })
}

fn main() -> ExitCode {
    end(
        "rdma_read",
        run().map_err(|error| -> Box<dyn Error> { error }),
    )
}
