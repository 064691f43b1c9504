//! The bpf(2) system calls: creates maps, loads programs and links them to interfaces.
//!
//! All of these objects are held by descriptors that no forked child keeps: when the last one is
//! closed, however the process ends, the program is detached from the interface.

#[cfg(feature = "dpdk")]
mod existing;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::program::Instruction;
use crate::fork::Descriptor;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const FLAGS_GENERIC: u32 = 1 << 1;
const FLAGS_NATIVE: u32 = 1 << 2;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the interface's driver, before the kernel has processed the frame.
    Native,
    /// In the kernel, for drivers that do not support programs.
    Generic,
}

/// The parts of `union bpf_attr`, each up to its last field that is used here;
/// the kernel takes missing fields as zero.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is of the type that the command requires, and the addresses in it point to
/// live memory of the lengths that the command reads or writes there.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    let address = core::ptr::from_ref(attributes);
    // SAFETY: address and size are those of one live value; the rest is the caller's obligation.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as libc::c_int)
}

/// Calls bpf(2) with a command that creates a descriptor.
///
/// # Safety
/// As for [`bpf`]; the command creates a descriptor.
unsafe fn create<T>(command: libc::c_int, attributes: &T) -> io::Result<Descriptor> {
    Descriptor::make(|| {
        // SAFETY: the caller's obligation.
        let fd = unsafe { bpf(command, attributes) }?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    })
}

fn fd_number(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}

fn create_map(map_type: u32, value_bytes: usize, max_entries: u32) -> io::Result<Descriptor> {
    let attributes = MapCreate {
        map_type,
        key_bytes: size_of::<u32>() as u32,
        value_bytes: value_bytes as u32,
        max_entries,
    };
    // SAFETY: the attributes contain no address.
    unsafe { create(MAP_CREATE, &attributes) }
}

/// The sockets to which frames are redirected, by queue.
#[derive(Debug)]
pub(super) struct SocketMap(Descriptor);

impl SocketMap {
    /// Creates a map for the queues below `queues`.
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        create_map(MAP_TYPE_XSKMAP, size_of::<u32>(), queues).map(Self)
    }

    /// Redirects the frames of a queue to a socket.
    pub(super) fn insert(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        let socket = fd_number(socket);
        let attributes = MapElement {
            map_fd: fd_number(&self.0),
            padding: 0,
            key: (&raw const queue) as u64,
            value: (&raw const socket) as u64,
            flags: 0,
        };
        // SAFETY: key and value are live and have the sizes that the map was created with; both are read.
        unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }?;
        Ok(())
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A counter that programs increment.
#[derive(Debug)]
pub(super) struct CounterMap(Descriptor);

impl CounterMap {
    pub(super) fn new() -> io::Result<Self> {
        create_map(MAP_TYPE_ARRAY, size_of::<u64>(), 1).map(Self)
    }

    /// Reads the counter.
    pub(super) fn value(&self) -> io::Result<u64> {
        let (key, mut value) = (0u32, 0u64);
        let attributes = MapElement {
            map_fd: fd_number(&self.0),
            padding: 0,
            key: (&raw const key) as u64,
            value: (&raw mut value) as u64,
            flags: 0,
        };
        // SAFETY: key and value are live and have the sizes that the map was created with; the
        // kernel writes the value, to which no reference exists meanwhile.
        unsafe { bpf(MAP_LOOKUP_ELEM, &attributes) }?;
        Ok(value)
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A program that the kernel has verified and loaded.
#[derive(Debug)]
pub(crate) struct Program(Descriptor);

impl Program {
    pub(super) fn load(code: &[Instruction]) -> io::Result<Self> {
        let license = c"MIT";
        let attributes = ProgLoad {
            prog_type: PROG_TYPE_XDP,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
            name: *b"viaduct_steer\0\0\0",
            ifindex: 0,
            expected_attach_type: ATTACH_TYPE_XDP,
        };
        // SAFETY: the code has that many instructions, the license is a terminated string, and
        // there is no log; all of it is live and only read.
        unsafe { create(PROG_LOAD, &attributes) }.map(Self)
    }
}

/// A link that attaches a program to an interface until it is dropped.
#[derive(Debug)]
pub(crate) struct XdpLink(Descriptor);

impl XdpLink {
    pub(crate) fn new(program: &Program, interface: i32, mode: Mode) -> io::Result<Self> {
        let attributes = LinkCreate {
            prog_fd: fd_number(&program.0),
            target_ifindex: interface.cast_unsigned(),
            attach_type: ATTACH_TYPE_XDP,
            flags: match mode {
                Mode::Native => FLAGS_NATIVE,
                Mode::Generic => FLAGS_GENERIC,
            },
        };
        // SAFETY: the attributes contain no address.
        unsafe { create(LINK_CREATE, &attributes) }.map(Self)
    }

    /// Replaces the program atomically: every frame is processed by one of the two.
    pub(super) fn replace(&self, program: &Program) -> io::Result<()> {
        let attributes = LinkUpdate {
            link_fd: fd_number(&self.0),
            new_prog_fd: fd_number(&program.0),
        };
        // SAFETY: the attributes contain no address.
        unsafe { bpf(LINK_UPDATE, &attributes) }?;
        Ok(())
    }
}
