//! Looks up programs and links that other code created.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::{Descriptor, Program, XdpLink, bpf, create, fd_number};

const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_GET_FD_BY_ID: libc::c_int = 30;
const LINK_GET_NEXT_ID: libc::c_int = 31;
const LINK_TYPE_XDP: u32 = 6;

/// Attributes of commands that look up an object by its id, or the next id.
#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct InfoOf {
    fd: u32,
    info_bytes: u32,
    info: u64,
}

/// The first fields of `struct bpf_link_info` for a link of XDP.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    link_type: u32,
    id: u32,
    prog_id: u32,
    padding: u32,
    ifindex: u32,
}

fn by_id(command: libc::c_int, id: u32) -> io::Result<Descriptor> {
    let attributes = ById {
        id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: the attributes contain no address, and both commands create a descriptor.
    unsafe { create(command, &attributes) }
}

/// Returns the id of the next link after this one.
fn next_link(id: u32) -> io::Result<Option<u32>> {
    let mut attributes = ById {
        id,
        next_id: 0,
        open_flags: 0,
    };
    let address = &raw mut attributes;
    // SAFETY: address and size are those of one live value that contains no address; the kernel writes to it.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, LINK_GET_NEXT_ID, address, size_of::<ById>()) };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(Some(attributes.next_id)),
        error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        error => Err(error),
    }
}

fn link_info(link: &Descriptor) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    let attributes = InfoOf {
        fd: fd_number(link),
        info_bytes: size_of::<LinkInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: the info is live and of the given size; the kernel writes it, and no reference to it exists meanwhile.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &attributes) }?;
    Ok(info)
}

impl Program {
    /// Opens a loaded program by its id.
    pub(crate) fn by_id(id: u32) -> io::Result<Self> {
        by_id(PROG_GET_FD_BY_ID, id).map(Self)
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl XdpLink {
    /// Opens the link that attaches the program with this id to an interface, if there is one: it is detached with the
    /// last descriptor. Interfaces of other namespaces have the same indices, programs have unique ids.
    pub(crate) fn of_program(prog_id: u32, interface: i32) -> io::Result<Option<Self>> {
        let mut id = 0;
        while let Some(next) = next_link(id)? {
            id = next;
            let link = match by_id(LINK_GET_FD_BY_ID, id) {
                Ok(link) => link,
                // It was detached meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) => return Err(error),
            };
            let info = link_info(&link)?;
            let wanted = (LINK_TYPE_XDP, prog_id, interface.cast_unsigned());
            if (info.link_type, info.prog_id, info.ifindex) == wanted {
                return Ok(Some(Self(link)));
            }
        }
        Ok(None)
    }
}
