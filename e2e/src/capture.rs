//! Captures of all frames at an interface, dissected by tshark.
//!
//! dumpcap writes into a pipe, and the frames read from it are compared with the statistics of the interface: a capture
//! with missing frames fails the test.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use crate::process::{TIMEOUT, succeed};
use crate::scratch::Scratch;
use crate::wire::Namespace;

/// Size of the kernel's capture buffer in megabytes; larger than the traffic of any test.
const BUFFER_MB: &str = "128";
/// Length of the header of a pcap file.
const FILE_HEADER_BYTES: usize = 24;
/// Length of the record header of one frame in it.
const FRAME_HEADER_BYTES: usize = 16;
/// Upper limit for plausible frame lengths; a longer one means a parsing error.
const FRAME_LIMIT_BYTES: usize = 1 << 16;

/// A running capture.
pub struct Capture<'a> {
    namespace: &'a Namespace,
    interface: String,
    seen_before: u64,
    child: Child,
    pieces: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
}

impl<'a> Capture<'a> {
    /// Starts to capture at an interface and waits until the capture is active.
    ///
    /// # Panics
    /// The capture does not start.
    pub fn start(namespace: &'a Namespace, interface: &str) -> Self {
        let mut command = namespace.program("dumpcap");
        command.args(["-q", "-P", "-B", BUFFER_MB, "-i", interface, "-w", "-"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let pieces = read_pieces(child.stdout.take().expect("piped"));
        let mut this = Self {
            namespace,
            interface: interface.to_owned(),
            seen_before: 0,
            child,
            pieces,
            bytes: Vec::new(),
        };
        // dumpcap writes the file header once its socket is open; there is no traffic yet.
        this.read_until("the file header", |bytes| bytes.len() >= FILE_HEADER_BYTES);
        this.seen_before = this.seen_by_interface();
        this
    }

    /// Stops the capture once it has all frames of the interface, and dissects them.
    ///
    /// # Panics
    /// If a frame is missing.
    pub fn finish(self) -> Vec<Frame> {
        let rows = self.finish_with(&FIELDS, Occurrence::First);
        rows.into_iter().map(|fields| Frame { fields }).collect()
    }

    /// Like [`Self::finish`], with the given tshark fields, in this order. A field that a frame lacks is empty.
    ///
    /// # Panics
    /// If a frame is missing.
    pub fn finish_with(mut self, fields: &[&str], occurrence: Occurrence) -> Vec<Vec<String>> {
        let expected = self.seen_by_interface() - self.seen_before;
        let what = format!("all {expected} frames");
        self.read_until(&what, |bytes| frames_in(bytes) >= expected);
        succeed(Command::new("kill").args(["-INT", &self.child.id().to_string()]));
        let mut output = String::new();
        let mut errors = self.child.stderr.take().expect("piped");
        errors.read_to_string(&mut output).expect("text of dumpcap");
        let status = self.child.wait().expect("dumpcap's status");
        assert!(status.success(), "dumpcap: {status}\n{output}");
        assert_no_drops(&output);
        assert_eq!(
            frames_in(&self.bytes),
            expected,
            "frames arrived after the programs of the test had ended"
        );
        let frames = dissect(&self.bytes, fields, occurrence);
        assert_eq!(
            frames.len() as u64,
            expected,
            "tshark has dissected a different number of frames"
        );
        frames
    }

    /// Waits until frames from `count` source addresses were captured.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_for_senders(&mut self, count: usize) {
        let what = format!("frames of {count} stations");
        self.read_until(&what, |bytes| {
            let senders: HashSet<&[u8]> = frames(bytes).filter_map(|f| f.get(6..12)).collect();
            senders.len() >= count
        });
    }

    /// Waits for a new frame for which `fits` returns true.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_for_frame(&mut self, what: &str, fits: impl Fn(&[u8]) -> bool) {
        self.bytes.extend(self.pieces.try_iter().flatten());
        let before = frames(&self.bytes).count();
        self.read_until(what, |bytes| frames(bytes).skip(before).any(&fits));
    }

    /// Returns the pcap bytes captured so far; the capture continues.
    pub fn so_far(&mut self) -> &[u8] {
        self.bytes.extend(self.pieces.try_iter().flatten());
        &self.bytes
    }

    fn seen_by_interface(&self) -> u64 {
        let link = self.namespace.link(&self.interface);
        let count = |direction: &str| {
            link["stats64"][direction]["packets"]
                .as_u64()
                .unwrap_or_else(|| panic!("statistics in {link}"))
        };
        count("rx") + count("tx")
    }

    fn read_until(&mut self, what: &str, is_enough: impl Fn(&[u8]) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_enough(&self.bytes) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.pieces.recv_timeout(left) {
                Ok(piece) => self.bytes.extend(piece),
                Err(error) => panic!(
                    "the capture lacks {what}: {} frames captured: {error}",
                    frames_in(&self.bytes)
                ),
            }
        }
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // Errors mean that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_pieces(mut stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, pieces) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    pieces
}

/// Iterates over the complete frames in the bytes of a pcap file.
///
/// # Panics
/// If the bytes are not a pcap file.
pub fn frames(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = FILE_HEADER_BYTES;
    std::iter::from_fn(move || {
        let length = bytes.get(at + 8..at + 12)?;
        let length = u32::from_ne_bytes(length.try_into().expect("four bytes")) as usize;
        assert!(
            length < FRAME_LIMIT_BYTES,
            "a frame of {length} bytes in the capture"
        );
        let begin = at + FRAME_HEADER_BYTES;
        let frame = bytes.get(begin..begin + length)?;
        at = begin + length;
        Some(frame)
    })
}

fn frames_in(bytes: &[u8]) -> u64 {
    frames(bytes).count() as u64
}

/// Checks the last line of dumpcap: `.../dropped on interface 'right': 120/0 (...)`.
fn assert_no_drops(output: &str) {
    let counts = output
        .lines()
        .find_map(|line| line.split_once("dropped on interface"))
        .and_then(|(_, rest)| rest.split_once(": "))
        .and_then(|(_, rest)| rest.split_once(' '))
        .and_then(|(counts, _)| counts.split_once('/'));
    assert!(
        matches!(counts, Some((_, "0"))),
        "the capture has dropped frames: increase BUFFER_MB\n{output}"
    );
}

/// The tshark fields of each frame.
const FIELDS: [&str; 13] = [
    "eth.type",
    "fcoe.crc.status",
    "fcoe.sof",
    "fcoe.eof",
    "fc.type",
    "fc.r_ctl",
    "fc.s_id",
    "fc.d_id",
    "fc.ox_id",
    "fc.seq_id",
    "fc.seq_cnt",
    "fc.f_ctl",
    "frame.len",
];

/// F_CTL bit of a retransmitted frame, which otherwise equals the original byte for byte.
const RETRANSMITTED: u32 = 1 << 9;

/// A frame dissected by tshark; numbers are tshark's text.
#[derive(Clone, Debug)]
pub struct Frame {
    fields: Vec<String>,
}

impl Frame {
    /// Returns a field of [`FIELDS`]; empty if the frame lacks it.
    fn field(&self, name: &str) -> &str {
        let at = FIELDS.iter().position(|field| *field == name);
        &self.fields[at.expect("a field of FIELDS")]
    }

    /// Returns the fields that together must be unique among frames in flight.
    fn identity(&self) -> [&str; 5] {
        ["fc.s_id", "fc.d_id", "fc.ox_id", "fc.seq_id", "fc.seq_cnt"].map(|name| self.field(name))
    }

    /// Whether recovery has retransmitted this frame.
    fn is_retransmission(&self) -> bool {
        let digits = self.field("fc.f_ctl").trim_start_matches("0x");
        let f_ctl = u32::from_str_radix(digits, 16).expect("F_CTL");
        f_ctl & RETRANSMITTED != 0
    }

    /// Whether this is an FC-VI information unit, not an extended link service.
    pub fn is_vi(&self) -> bool {
        self.field("fc.type") == "0x58"
    }

    /// Whether this is an original frame of a send: unsolicited data, not a retransmission.
    pub fn is_of_send(&self) -> bool {
        self.is_vi() && self.field("fc.r_ctl") == "0x04" && !self.is_retransmission()
    }

    /// Returns the length on the wire, without the frame check sequence.
    pub fn wire_bytes(&self) -> usize {
        self.field("frame.len").parse().expect("a length")
    }

    /// Returns the sender's N_Port_ID, as `00.01.01`.
    pub fn s_id(&self) -> &str {
        self.field("fc.s_id")
    }
}

/// Which values of a repeated field tshark prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// The first.
    First,
    /// All, separated by commas.
    All,
}

/// Returns the given fields of each frame in the bytes of a pcap file.
pub(crate) fn dissect(bytes: &[u8], fields: &[&str], occurrence: Occurrence) -> Vec<Vec<String>> {
    let scratch = Scratch::new("capture");
    let file = scratch.file("frames.pcap");
    fs::write(&file, bytes).expect("a capture file is written");
    read_file_with(&file, fields, occurrence)
}

/// Reads the frames of a capture file.
///
/// # Panics
/// If tshark cannot read it.
pub fn read_file(file: &Path) -> Vec<Frame> {
    let rows = read_file_with(file, &FIELDS, Occurrence::First);
    rows.into_iter().map(|fields| Frame { fields }).collect()
}

/// Like [`read_file`], with the given tshark fields, in this order. A field that a frame lacks is empty.
///
/// # Panics
/// If tshark cannot read it.
pub fn read_file_with(file: &Path, fields: &[&str], occurrence: Occurrence) -> Vec<Vec<String>> {
    let occurrence = match occurrence {
        Occurrence::First => "occurrence=f",
        Occurrence::All => "occurrence=a",
    };
    let mut tshark = Command::new("tshark");
    tshark
        .args(["-n", "-T", "fields", "-E", occurrence, "-r"])
        .arg(file);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = succeed(&mut tshark);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// Checks that each frame is a valid FCoE frame of FC-VI or a probe, and that no two frames except retransmissions have
/// the same identity.
///
/// # Panics
/// With the frame that violates this.
pub fn check_frames(frames: &[Frame]) {
    let mut identities: HashMap<[&str; 5], usize> = HashMap::new();
    for (number, frame) in frames.iter().enumerate() {
        let expect = |name: &str, allowed: &[&str]| {
            assert!(
                allowed.contains(&frame.field(name)),
                "frame {number}: {name} is {:?}, must be one of {allowed:?}: {frame:?}",
                frame.field(name)
            );
        };
        expect("eth.type", &["0x8906"]);
        expect("fcoe.crc.status", &["1"]);
        expect("fc.type", &["0x58", "0x01"]);
        // Class 3: SOFi3 or SOFn3, EOFn or EOFt.
        expect("fcoe.sof", &["0x2e", "0x36"]);
        expect("fcoe.eof", &["0x41", "0x42"]);
        if frame.is_retransmission() {
            continue;
        }
        if let Some(first) = identities.insert(frame.identity(), number) {
            panic!("frames {first} and {number} have the same identity: {frame:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_frames_are_not_counted() {
        let mut bytes = vec![0; FILE_HEADER_BYTES];
        assert_eq!(frames_in(&bytes), 0);
        for length in [60_u32, 1514] {
            bytes.extend([0; 8]);
            bytes.extend(length.to_ne_bytes());
            bytes.extend(length.to_ne_bytes());
            bytes.extend(vec![0; length as usize]);
        }
        assert_eq!(frames_in(&bytes), 2);
        assert_eq!(frames_in(&bytes[..bytes.len() - 1]), 1);
    }

    #[test]
    fn dropped_frames_fail_the_capture() {
        assert_no_drops("x\n received/dropped on interface 'right': 7/0 (pcap:0) (0.0%)\n");
        for output in [
            "",
            "received/dropped on interface 'right': 7/1 (pcap:1) (12.5%)",
        ] {
            assert!(
                std::panic::catch_unwind(|| assert_no_drops(output)).is_err(),
                "{output}"
            );
        }
    }

    fn frame(change: impl Fn(&mut [&str; 12])) -> Frame {
        let mut fields = [
            "0x8906", "1", "0x2e", "0x42", "0x58", "0x04", "00.01.01", "00.02.01", "0x0001",
            "0x00", "0", "92",
        ];
        change(&mut fields);
        Frame {
            fields: fields.map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn check_frames_detects_invalid_and_duplicate_frames() {
        check_frames(&[frame(|_| {}), frame(|fields| fields[10] = "1")]);
        let wrong = [
            (0, "0x8914"),
            (1, "0"),
            (4, "0x08"),
            (2, "0x28"),
            (3, "0x50"),
        ];
        for (field, text) in wrong {
            let checked =
                std::panic::catch_unwind(|| check_frames(&[frame(|all| all[field] = text)]));
            assert!(checked.is_err(), "{text} in field {field}");
        }
        let duplicates = [frame(|_| {}), frame(|_| {})];
        assert!(std::panic::catch_unwind(|| check_frames(&duplicates)).is_err());
    }
}
