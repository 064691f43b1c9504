//! RDMA writes between two VIs of one program: one that the target sees by looking at its memory, and one that tells the
//! target with immediate data.
//!
//! ```text
//! cargo run --release -p vipl --example rdma_write
//! ```

mod common;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use common::{end, print};
use vipl::{Completed, Nic, Operation, RdmaAccess, RemoteBuffer, Timeout, VipError};

const DISCRIMINATOR: &[u8] = b"rdma-write";
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));
/// The first write: its last word is the flag.
const FIRST_BYTES: usize = 4096;
const FLAG_OFFSET_BYTES: usize = FIRST_BYTES - 8;
/// The second write goes behind the first, which the target may still be reading.
const SECOND_OFFSET_BYTES: usize = FIRST_BYTES;
const SECOND: &[u8; 5] = b"hello";
const REGION_BYTES: usize = FIRST_BYTES + SECOND.len();
const FLAG: u64 = 0x5649_4144_5543_5421;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn collected(head: Option<Completed>) -> Outcome<Completed> {
    head.ok_or("the queue is empty")?
        .ok()
        .map_err(|failed| failed.status.to_string().into())
}

/// Lets a peer write into its memory and tells it where that is.
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
    let (Some(mut tell), Some(notice)) = (descriptors.pop(), descriptors.pop()) else {
        return Err("two descriptors were asked for".into());
    };
    // Immediate data takes a receive descriptor; it needs no buffer.
    vi.post_recv(notice)?;
    let mut request = nic.connect_wait(&nic.local_address(DISCRIMINATOR)?, PATIENCE)?;
    request.accept(&vi)?;

    let mut buffer = nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer();
    buffer.copy_from_slice(&memory.remote_buffer().to_bytes());
    tell.push(buffer)
        .map_err(|_| "a descriptor without a segment")?;
    vi.post_send(tell)?;

    // The last word is seen last. Nothing is called here: the provider places the bytes all the same.
    while memory.load_u64(FLAG_OFFSET_BYTES) != FLAG {
        std::hint::spin_loop();
    }
    let mut bytes = [0; FLAG_OFFSET_BYTES];
    memory.read(0, &mut bytes);
    if bytes != [0xAB; FLAG_OFFSET_BYTES] {
        return Err("the flag was seen before the bytes in front of it".into());
    }
    print(format_args!(
        "target: the flag is set, and so are the {} bytes in front of it",
        bytes.len()
    ))?;

    let notice = collected(vi.recv_wait(PATIENCE)?)?;
    let mut bytes = [0; SECOND.len()];
    memory.read(SECOND_OFFSET_BYTES, &mut bytes);
    print(format_args!(
        "target: {} bytes were written, immediate data {}: {}",
        notice.length_bytes(),
        notice
            .immediate()
            .map_or("none".into(), |data| data.to_string()),
        String::from_utf8_lossy(&bytes)
    ))?;
    collected(vi.send_wait(PATIENCE)?)?;
    if notice.immediate() == Some(42) && bytes == *SECOND {
        Ok(())
    } else {
        Err("that is not what was sent".into())
    }
}

/// Learns where the target's memory is and writes into it twice.
fn writer() -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let vi = nic.vi(&ptag).build()?;
    let mut descriptors = nic.create_descriptors(2, 1, &ptag)?;
    let (Some(mut told), Some(mut write)) = (descriptors.pop(), descriptors.pop()) else {
        return Err("two descriptors were asked for".into());
    };
    told.push(nic.create_region(RemoteBuffer::BYTES, &ptag)?.into_buffer())
        .map_err(|_| "no segment")?;
    vi.post_recv(told)?;
    let (local, remote) = (
        nic.local_address(b"writer")?,
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
    let remote = RemoteBuffer::from_bytes(told.first_bytes().try_into()?);

    let mut buffer = nic.create_region(FIRST_BYTES, &ptag)?.into_buffer();
    buffer[..FLAG_OFFSET_BYTES].fill(0xAB);
    buffer[FLAG_OFFSET_BYTES..].copy_from_slice(&FLAG.to_ne_bytes());
    write.push(buffer).map_err(|_| "no segment")?;
    write.set_operation(Operation::RdmaWrite(remote));
    vi.post_send(write)?;
    let mut write = collected(vi.send_wait(PATIENCE)?)?.descriptor;
    write.buffer_mut(0)[..SECOND.len()].copy_from_slice(SECOND);
    write.set_used_bytes(0, SECOND.len());
    write.set_operation(Operation::RdmaWrite(remote.at(SECOND_OFFSET_BYTES as u64)));
    write.set_immediate(Some(42));
    vi.post_send(write)?;
    collected(vi.send_wait(PATIENCE)?)?;
    Ok(())
}

fn run() -> Outcome<()> {
    std::thread::scope(|scope| {
        let target = scope.spawn(target);
        let outcome = writer();
        // An error there may be the cause of one here.
        target.join().map_err(|_| "the target panicked")??;
        outcome
    })
}

fn main() -> ExitCode {
    end(
        "rdma_write",
        run().map_err(|error| -> Box<dyn Error> { error }),
    )
}
