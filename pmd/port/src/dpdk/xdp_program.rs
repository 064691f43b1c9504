//! Ties the XDP program of net_af_xdp to the life of the process.
//!
//! libxdp attaches the program to the interface by netlink: it stays attached after the process is killed and blocks
//! other users of the interface. This module detaches it and attaches it again by a BPF link, which the kernel closes
//! with its last holder.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::af_xdp::bpf::{Mode, Program, XdpLink};
use crate::descriptor_number::above_standard_streams;

/// Size of the buffer for the kernel's response about an interface.
const RESPONSE_BYTES: usize = 32 * 1024;
/// Bytes of `struct nlmsghdr` and, behind it, `struct ifinfomsg`; in an error response, the error number follows the
/// header.
const HEADER_BYTES: usize = 16;
const INTERFACE_BYTES: usize = 16;
/// Bytes of the length and type of an attribute, and its alignment.
const ATTRIBUTE_BYTES: usize = 4;
const ALIGNMENT_BYTES: usize = 4;
/// Flags in the type of an attribute.
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

/// The attribute of an interface with its XDP program, and its nested attributes.
const IFLA_XDP: u16 = 43;
const XDP_FD: u16 = 1;
const XDP_ATTACHED: u16 = 2;
const XDP_FLAGS: u16 = 3;
const XDP_PROG_ID: u16 = 4;
const XDP_EXPECTED_FD: u16 = 8;
/// Values of `XDP_ATTACHED`.
const ATTACHED_NATIVE: u8 = 1;
const ATTACHED_GENERIC: u8 = 2;
/// Flags of `XDP_FLAGS`.
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;
const FLAG_REPLACE: u32 = 1 << 4;

/// A program attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attached {
    id: u32,
    mode: Mode,
}

/// Parses attributes into types and contents.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let content = bytes.get(ATTRIBUTE_BYTES..length)?;
        let next = length.next_multiple_of(ALIGNMENT_BYTES);
        bytes = bytes.get(next..).unwrap_or_default();
        Some((kind & TYPE_MASK, content))
    })
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_BYTES + content.len();
    let mut bytes = (length as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(length.next_multiple_of(ALIGNMENT_BYTES), 0);
    bytes
}

/// Parses the attached program from a response.
fn attached(response: &[u8]) -> Option<Attached> {
    let find = |bytes, wanted| {
        let mut all = attributes(bytes);
        all.find_map(|(kind, content)| (kind == wanted).then_some(content))
    };
    let xdp = find(response.get(HEADER_BYTES + INTERFACE_BYTES..)?, IFLA_XDP)?;
    let mode = match *find(xdp, XDP_ATTACHED)?.first()? {
        ATTACHED_NATIVE => Mode::Native,
        ATTACHED_GENERIC => Mode::Generic,
        _ => return None,
    };
    let id = u32::from_ne_bytes(*find(xdp, XDP_PROG_ID)?.first_chunk()?);
    Some(Attached { id, mode })
}

/// Encodes the attribute that detaches the program if it is attached, or attaches it if none is (`on`).
fn change(program: &Program, mode: Mode, on: bool) -> Vec<u8> {
    let (next, expected) = match on {
        true => (program.raw_fd(), -1),
        false => (-1, program.raw_fd()),
    };
    let flags = FLAG_REPLACE
        | match mode {
            Mode::Native => FLAG_NATIVE,
            Mode::Generic => FLAG_GENERIC,
        };
    let fields = [
        attribute(XDP_FD, &next.to_ne_bytes()),
        attribute(XDP_FLAGS, &flags.to_ne_bytes()),
        attribute(XDP_EXPECTED_FD, &expected.to_ne_bytes()),
    ];
    attribute(IFLA_XDP | NESTED, &fields.concat())
}

/// A netlink socket for requests about interfaces, in the network namespace of the thread that opened it.
struct Netlink(OwnedFd);

impl Netlink {
    fn open() -> io::Result<Self> {
        // SAFETY: passes no pointers.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_ROUTE,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) }).map(Self)
    }

    /// Sends a request and returns the kernel's response, which is available when the request is sent.
    fn request(
        &self,
        kind: u16,
        flags: libc::c_int,
        index: i32,
        rest: &[u8],
    ) -> io::Result<Vec<u8>> {
        let length = HEADER_BYTES + INTERFACE_BYTES + rest.len();
        let mut request = (length as u32).to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        // No sequence number or sender; any address family and interface type.
        request.extend([0; 12]);
        request.extend(index.to_ne_bytes());
        request.extend([0; 8]);
        request.extend(rest);
        // SAFETY: the pointer is valid for reads of the given length.
        let sent = unsafe {
            libc::send(
                self.0.as_raw_fd(),
                request.as_ptr().cast(),
                request.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut response = vec![0; RESPONSE_BYTES];
        // SAFETY: the pointer is valid for writes of the given length.
        let got = unsafe {
            libc::recv(
                self.0.as_raw_fd(),
                response.as_mut_ptr().cast(),
                response.len(),
                libc::MSG_DONTWAIT,
            )
        };
        response.truncate(usize::try_from(got).map_err(|_| io::Error::last_os_error())?);
        let number = |at: usize| Some(i32::from_ne_bytes(*response.get(at..)?.first_chunk()?));
        let is_error = response.get(4..6) == Some(&(libc::NLMSG_ERROR as u16).to_ne_bytes()[..]);
        match number(HEADER_BYTES) {
            Some(error) if is_error && error != 0 => {
                Err(io::Error::from_raw_os_error(error.saturating_neg()))
            }
            _ => Ok(response),
        }
    }

    fn attached(&self, index: i32) -> io::Result<Option<Attached>> {
        Ok(attached(&self.request(libc::RTM_GETLINK, 0, index, &[])?))
    }

    fn change(&self, index: i32, program: &Program, mode: Mode, on: bool) -> io::Result<()> {
        let change = change(program, mode, on);
        self.request(libc::RTM_SETLINK, libc::NLM_F_ACK, index, &change)?;
        Ok(())
    }
}

/// Replaces the attachment of the program on an interface, if there is one, by a BPF link: the program is detached with
/// the last port that holds such a link.
///
/// # Errors
/// The kernel refuses. The program stays attached as it is, also after the process exits.
pub(super) fn link(index: u32) -> io::Result<Option<XdpLink>> {
    let index = index.cast_signed();
    let netlink = Netlink::open()?;
    let Some(Attached { id, mode }) = netlink.attached(index)? else {
        return Ok(None);
    };
    let program = Program::by_id(id)?;
    match netlink.change(index, &program, mode, false) {
        // Another port has linked it already.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => XdpLink::of_program(id, index),
        Err(error) => Err(error),
        Ok(()) => XdpLink::new(&program, index, mode)
            .map(Some)
            .or_else(|error| {
                netlink.change(index, &program, mode, true)?;
                Err(error)
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + INTERFACE_BYTES];
        bytes.extend(attribute(1, &[2, 0, 0, 0, 0, 1]));
        bytes.extend(attribute(IFLA_XDP | NESTED, &attributes.concat()));
        bytes
    }

    #[test]
    fn response_is_parsed_into_program_id_and_mode() {
        let id = || attribute(XDP_PROG_ID, &7u32.to_ne_bytes());
        let mode = |mode: u8| attribute(XDP_ATTACHED, &[mode]);
        for (number, mode_is) in [(1, Mode::Native), (2, Mode::Generic)] {
            let expected = Attached {
                id: 7,
                mode: mode_is,
            };
            let all = response(&[mode(number), id()]);
            assert_eq!(attached(&all), Some(expected));
            for length in 0..all.len() - 4 {
                assert_eq!(attached(&all[..length]), None, "{length} bytes");
            }
        }
        for nothing in [vec![mode(0)], vec![mode(3), id()], vec![mode(1)], vec![]] {
            assert_eq!(attached(&response(&nothing)), None);
        }
    }
}
