use std::time::Duration;

use super::*;
use crate::memory::testkit::{Process, map_private};
use crate::sys::CallTimer;

fn read(client: &ClientProcess, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; bytes];
    let local = [iovec(out.as_mut_ptr() as u64, bytes)];
    // SAFETY: all of `out`.
    unsafe { client.read(&local, &[iovec(address, bytes)]) }.map(|()| out)
}

fn write(client: &ClientProcess, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = [iovec(bytes.as_ptr() as u64, bytes.len())];
    // SAFETY: `bytes` is read only.
    unsafe { client.write(&local, &[iovec(address, bytes.len())]) }
}

#[test]
fn memory_of_another_process_is_read_and_written() {
    let process = Process::with_pages(2);
    let client = process.client();
    process.write(5000, b"there");
    assert_eq!(read(&client, process.address + 5000, 5).unwrap(), b"there");
    // Across a page boundary.
    write(&client, process.address + 4090, b"and back again").unwrap();
    assert_eq!(process.read(4090, 14), b"and back again");
    client.probe(process.address, process.len_bytes).unwrap();
}

#[test]
fn unmapped_and_partial_ranges_are_errors() {
    let process = Process::with_pages(1);
    let client = process.client();
    let end = process.address + process.len_bytes;
    let beyond = client.probe(process.address, u64::MAX);
    assert!(matches!(beyond, Err(ClientError::Unreachable(_))));
    assert!(read(&client, 16, 1).is_err());
    let guard = map_private(PAGE);
    let inside = read(&client, end - 4, 4).unwrap();
    assert_eq!(inside, [0; 4]);
    // Nothing is mapped at the last address, whatever follows the pages of the child.
    assert!(read(&client, u64::MAX - 8, 4).is_err());
    assert!(write(&client, 8, b"x").is_err());
    // A partial read: the first range is mapped, the second is not.
    let mut out = [1u8; 2];
    let local = [iovec(out.as_mut_ptr() as u64, 2)];
    let remote = [iovec(process.address, 1), iovec(16, 1)];
    // SAFETY: all of `out`.
    let part = unsafe { client.read(&local, &remote) };
    assert_eq!(part.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    // SAFETY: mapped above and not used.
    unsafe { libc::munmap(guard as *mut libc::c_void, PAGE as usize) };
}

const PAGE: u64 = crate::memory::pages::PAGE_BYTES;

#[test]
fn killed_client_is_detected_in_the_next_poll() {
    let process = Process::with_pages(1);
    let client = process.client();
    assert!(client.is_alive(1));
    process.kill();
    assert!(client.is_alive(1), "queried once per poll");
    // The process ID is not reused yet: the kernel reports that the memory is gone.
    let error = read(&client, process.address, 1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    assert!(!client.is_alive(2));
    assert!(!client.is_alive(1), "dead clients stay dead");
    assert!(!client.is_alive(3));
    let probed = client.probe(process.address, 1);
    assert!(matches!(probed, Err(ClientError::Unreachable(_))));
}

#[test]
fn pid_without_a_process_is_refused() {
    drop_cap_sys_ptrace().unwrap();
    for pid in [0, u32::MAX, i32::MAX as u32] {
        let refused = ClientProcess::open(pid).unwrap_err();
        assert!(
            matches!(refused, ClientError::NoProcess(_)),
            "{pid}: {refused}"
        );
    }
}

#[test]
fn thread_with_cap_sys_ptrace_gets_no_client_process() {
    if !has_cap_sys_ptrace().unwrap() {
        // The tests run without the capability.
        return;
    }
    let own = std::process::id();
    assert!(matches!(
        ClientProcess::open(own),
        Err(ClientError::Privileged)
    ));
    drop_cap_sys_ptrace().unwrap();
    assert!(!has_cap_sys_ptrace().unwrap());
    ClientProcess::open(own).unwrap();
    // Threads that this thread starts inherit it.
    let inherited = std::thread::spawn(has_cap_sys_ptrace).join();
    assert!(!inherited.unwrap().unwrap());
}

#[test]
fn process_of_another_user_is_denied() {
    let process = Process::of_another_user();
    let Some(process) = process else {
        // Only root can start one.
        return;
    };
    let denied = process.client().probe(process.address, 1);
    assert!(matches!(denied, Err(ClientError::Denied)), "{denied:?}");
}

#[test]
fn interrupted_query_finds_a_process_alive() {
    let process = Process::with_pages(1);
    let client = process.client();
    let timer = CallTimer::new().unwrap();
    timer.interrupt_each(Duration::from_micros(100), || {
        for poll_number in 1..=200_000 {
            assert!(client.is_alive(poll_number), "{poll_number}");
        }
    });
}
