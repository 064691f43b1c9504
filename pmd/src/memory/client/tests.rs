use super::*;
use crate::memory::testkit::{Process, map_private};

fn read(client: &Client, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; bytes];
    let near = [piece(out.as_mut_ptr() as u64, bytes)];
    // SAFETY: all of `out`.
    unsafe { client.read(&near, &[piece(address, bytes)]) }.map(|()| out)
}

fn write(client: &Client, address: u64, bytes: &[u8]) -> io::Result<()> {
    let near = [piece(bytes.as_ptr() as u64, bytes.len())];
    // SAFETY: `bytes` is read only.
    unsafe { client.write(&near, &[piece(address, bytes.len())]) }
}

#[test]
fn memory_of_another_process_is_read_and_written() {
    let process = Process::with_pages(2);
    let client = process.client();
    process.write(5000, b"there");
    assert_eq!(read(&client, process.address + 5000, 5).unwrap(), b"there");
    // Over the edge of a page.
    write(&client, process.address + 4090, b"and back again").unwrap();
    assert_eq!(process.read(4090, 14), b"and back again");
    client.probe(process.address, process.len_bytes).unwrap();
}

#[test]
fn what_is_not_there_is_an_error_and_so_is_a_part() {
    let process = Process::with_pages(1);
    let client = process.client();
    let end = process.address + process.len_bytes;
    let beyond = client.probe(process.address, u64::MAX);
    assert!(matches!(beyond, Err(ClientError::Unreachable(_))));
    assert!(read(&client, 16, 1).is_err());
    let guard = map_private(PAGE);
    let inside = read(&client, end - 4, 4).unwrap();
    assert_eq!(inside, [0; 4]);
    // Whatever lies behind the pages of the child: nothing is mapped at the last address.
    assert!(read(&client, u64::MAX - 8, 4).is_err());
    assert!(write(&client, 8, b"x").is_err());
    // A part: the first piece is there, the second is not.
    let mut out = [1u8; 2];
    let near = [piece(out.as_mut_ptr() as u64, 2)];
    let far = [piece(process.address, 1), piece(16, 1)];
    // SAFETY: all of `out`.
    let part = unsafe { client.read(&near, &far) };
    assert_eq!(part.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    // SAFETY: mapped above and used by nobody.
    unsafe { libc::munmap(guard as *mut libc::c_void, PAGE as usize) };
}

const PAGE: u64 = crate::memory::pages::PAGE_BYTES;

#[test]
fn a_client_that_was_killed_is_found_dead_once_a_turn() {
    let process = Process::with_pages(1);
    let client = process.client();
    assert!(client.is_alive(1));
    process.kill();
    assert!(client.is_alive(1), "not asked again in the same turn");
    // Its number is still its own: the kernel says that its memory is gone.
    let error = read(&client, process.address, 1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    assert!(!client.is_alive(2));
    assert!(!client.is_alive(1), "nobody comes back to life");
    assert!(!client.is_alive(3));
    let probed = client.probe(process.address, 1);
    assert!(matches!(probed, Err(ClientError::Unreachable(_))));
}

#[test]
fn a_number_that_names_no_process_is_refused() {
    obey_ptrace_rules().unwrap();
    for pid in [0, u32::MAX, i32::MAX as u32] {
        let refused = Client::open(pid).unwrap_err();
        assert!(
            matches!(refused, ClientError::NoProcess(_)),
            "{pid}: {refused}"
        );
    }
}

#[test]
fn who_overrides_the_rules_of_ptrace_gets_no_client() {
    // Of this test's own thread.
    if !overrides_ptrace_rules().unwrap() {
        // An ordinary user runs the tests.
        return;
    }
    let own = std::process::id();
    assert!(matches!(Client::open(own), Err(ClientError::Privileged)));
    obey_ptrace_rules().unwrap();
    assert!(!overrides_ptrace_rules().unwrap());
    Client::open(own).unwrap();
    // Others that this thread starts obey too.
    let inherited = std::thread::spawn(overrides_ptrace_rules).join();
    assert!(!inherited.unwrap().unwrap());
}

#[test]
fn a_process_of_another_user_is_denied() {
    let process = Process::of_another_user();
    let Some(process) = process else {
        // Only root can start one.
        return;
    };
    let denied = process.client().probe(process.address, 1);
    assert!(matches!(denied, Err(ClientError::Denied)), "{denied:?}");
}
