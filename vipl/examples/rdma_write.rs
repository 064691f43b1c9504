//! RDMA writes between two VIs of one program: one that the target detects by polling its memory, and one with
//! immediate data, which completes a receive of the target.
//!
//! ```text
//! cargo run --release -p vipl --example rdma_write
//! ```

mod common;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use common::{exit_code, print};
use vipl::{Completed, Nic, Operation, RdmaAccess, RemoteBuffer, Timeout, VipError};

const DISCRIMINATOR: &[u8] = b"rdma-write";
const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(10));
/// Length of the first write, whose last word is the flag.
const FIRST_BYTES: usize = 4096;
const FLAG_OFFSET_BYTES: usize = FIRST_BYTES - 8;
/// The second write is placed after the first, which the target may still be reading.
const SECOND_OFFSET_BYTES: usize = FIRST_BYTES;
const SECOND: &[u8; 5] = b"hello";
const REGION_BYTES: usize = FIRST_BYTES + SECOND.len();
const FLAG: u64 = 0x5649_4144_5543_5421;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the completed descriptor of a queue; fails if there is none or its status is an error.
fn check_completed(head: Option<Completed>) -> Outcome<Completed> {
    head.ok_or("the queue is empty")?
        .ok()
        .map_err(|failed| failed.status.to_string().into())
}

/// Registers memory for writes, sends its address to the peer, and waits for both writes.
fn target() -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let memory = nic.create_rdma_region(
        REGION_BYTES,
        &ptag,
        RdmaAccess {
            write: true,
            read: false,
        },
    )?;
    let vi = nic.vi(&ptag).rdma_write(true).build()?;
    let mut descriptors = nic.create_descriptors(2, 1, &ptag)?;
    let (Some(mut message), Some(notification)) = (descriptors.pop(), descriptors.pop()) else {
        return Err("too few descriptors".into());
    };
    // Immediate data consumes a receive descriptor, which needs no buffer.
    vi.post_recv(notification)?;
    let mut request = nic.connect_wait(&nic.local_address(DISCRIMINATOR)?, TIMEOUT)?;
    request.accept(&vi)?;

    let mut buffer = nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer();
    buffer.copy_from_slice(&memory.remote_buffer().to_bytes());
    message
        .push(buffer)
        .map_err(|_| "a descriptor without a segment")?;
    vi.post_send(message)?;

    // The last word becomes visible last. The data is placed without a call by this thread.
    while memory.load_u64(FLAG_OFFSET_BYTES) != FLAG {
        std::hint::spin_loop();
    }
    let mut bytes = [0; FLAG_OFFSET_BYTES];
    memory.read(0, &mut bytes);
    if bytes != [0xAB; FLAG_OFFSET_BYTES] {
        return Err("the flag was visible before the bytes before it".into());
    }
    print(format_args!(
        "target: the flag is set; the {} bytes before it are complete",
        bytes.len()
    ))?;

    let notification = check_completed(vi.recv_wait(TIMEOUT)?)?;
    let mut bytes = [0; SECOND.len()];
    memory.read(SECOND_OFFSET_BYTES, &mut bytes);
    print(format_args!(
        "target: {} bytes were written, immediate data {}: {}",
        notification.length_bytes(),
        notification
            .immediate()
            .map_or("none".into(), |data| data.to_string()),
        String::from_utf8_lossy(&bytes)
    ))?;
    check_completed(vi.send_wait(TIMEOUT)?)?;
    if notification.immediate() == Some(42) && bytes == *SECOND {
        Ok(())
    } else {
        Err("unexpected data".into())
    }
}

/// Receives the address of the target's memory and writes into it twice.
fn writer() -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let vi = nic.vi(&ptag).build()?;
    let mut descriptors = nic.create_descriptors(2, 1, &ptag)?;
    let (Some(mut message), Some(mut write)) = (descriptors.pop(), descriptors.pop()) else {
        return Err("too few descriptors".into());
    };
    message
        .push(nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer())
        .map_err(|_| "no segment")?;
    vi.post_recv(message)?;
    let (local, remote) = (
        nic.local_address(b"writer")?,
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
    let remote = RemoteBuffer::from_bytes(message.first_bytes().try_into()?);

    let mut buffer = nic.create_region(FIRST_BYTES, &ptag)?.into_buffer();
    buffer[..FLAG_OFFSET_BYTES].fill(0xAB);
    buffer[FLAG_OFFSET_BYTES..].copy_from_slice(&FLAG.to_ne_bytes());
    write.push(buffer).map_err(|_| "no segment")?;
    write.set_operation(Operation::RdmaWrite(remote));
    vi.post_send(write)?;
    let mut write = check_completed(vi.send_wait(TIMEOUT)?)?.descriptor;
    write.buffer_mut(0)[..SECOND.len()].copy_from_slice(SECOND);
    write.set_used_bytes(0, SECOND.len());
    write.set_operation(Operation::RdmaWrite(remote.at(SECOND_OFFSET_BYTES as u64)));
    write.set_immediate(Some(42));
    vi.post_send(write)?;
    check_completed(vi.send_wait(TIMEOUT)?)?;
    Ok(())
}

fn run() -> Outcome<()> {
    std::thread::scope(|scope| {
        let target = scope.spawn(target);
        let result = writer();
        // An error of the target may be the cause of one here.
        target.join().map_err(|_| "the target panicked")??;
        result
    })
}

fn main() -> ExitCode {
    exit_code(
        "rdma_write",
        run().map_err(|error| -> Box<dyn Error> { error }),
    )
}
