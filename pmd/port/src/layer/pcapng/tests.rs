use super::*;
use crate::loopback::{LoopbackConfig, LoopbackPort};
use std::path::PathBuf;
use std::process::Command;

/// A file that is removed when the test ends, however it ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// A sink that is full after `room_bytes`.
struct FullSink {
    room_bytes: usize,
}

impl Write for FullSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.room_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room_bytes -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn send(port: &mut dyn Port, dst: MacBytes, len_bytes: usize) {
    let src = port.capabilities().mac;
    let mut mbuf = port.alloc(dst).expect("room");
    let frame = &mut mbuf.buffer_mut()[..len_bytes];
    frame.fill(0xEE);
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&src);
    // An EtherType for experiments, which no dissector handles.
    frame[12..14].copy_from_slice(&[0x88, 0xB5]);
    mbuf.set_len(len_bytes);
    let mut batch = MbufBatch::new();
    batch.push(mbuf).expect("an empty batch");
    assert_eq!(port.tx_burst(&mut batch), 1);
}

fn receive_one(port: &mut dyn Port) {
    let mut batch = MbufBatch::new();
    assert_eq!(port.rx_burst(&mut batch, crate::BURST), 1);
    port.free(batch.pop().expect("one frame"));
}

fn pair() -> (LoopbackPort, LoopbackPort) {
    LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair")
}

#[test]
fn tshark_reads_both_directions() {
    let name = format!("pmd-port-{}.pcapng", std::process::id());
    let file = Scratch(std::env::temp_dir().join(name));
    let (a, mut b) = pair();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let sink = File::create(&file.0).expect("a file in the temporary directory");
    let mut tee = PcapngTee::new(a, BufWriter::new(sink)).expect("a writable file");
    for len_bytes in [60, 61, 62, 63, 2172] {
        send(&mut tee, b_mac, len_bytes);
        receive_one(&mut b);
        send(
            &mut b,
            a_mac,
            len_bytes + 100 * usize::from(len_bytes < 100),
        );
        receive_one(&mut tee);
    }
    drop(tee);

    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields"]);
    for field in [
        "frame.len",
        "frame.packet_flags_direction",
        "frame.interface_name",
        "eth.src",
    ] {
        command.args(["-e", field]);
    }
    let output = command.arg("-r").arg(&file.0).output();
    let output = output.expect("this test needs the program tshark");
    assert!(output.status.success(), "{output:?}");
    let mut expected = String::new();
    for len_bytes in [60, 61, 62, 63, 2172] {
        let back = len_bytes + 100 * i32::from(len_bytes < 100);
        expected += &format!("{len_bytes}\t0x00000002\thub\t0e:fd:00:00:00:01\n");
        expected += &format!("{back}\t0x00000001\thub\t0e:fd:00:00:00:02\n");
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn block_bytes_match_the_format() {
    let mut bytes = Vec::new();
    format::frame(
        &mut bytes,
        &[1, 2, 3, 4, 5],
        9,
        Direction::Inbound,
        0x1_0000_0002,
    );
    #[rustfmt::skip]
    let expected = [
        6, 0, 0, 0,  52, 0, 0, 0, // type, length
        0, 0, 0, 0,  1, 0, 0, 0,  2, 0, 0, 0, // interface, time
        5, 0, 0, 0,  9, 0, 0, 0, // kept, seen
        1, 2, 3, 4,  5, 0, 0, 0, // frame, padding
        2, 0, 4, 0,  1, 0, 0, 0, // flags: inbound
        0, 0, 0, 0, // end of options
        52, 0, 0, 0, // length
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn full_disk_stops_the_capture_but_not_the_traffic() {
    let (a, mut b) = pair();
    let b_mac = b.capabilities().mac;
    let mut tee = PcapngTee::new(a, FullSink { room_bytes: 400 }).expect("room for the header");
    for _ in 0..10 {
        send(&mut tee, b_mac, 60);
        receive_one(&mut b);
    }
    let counters = tee.stats().counters;
    let value = |name| counters.iter().find(|c| c.name == name).map(|c| c.value);
    let (frames, errors) = (value("capture_frames"), value("capture_errors"));
    assert_eq!(frames.zip(errors).map(|(f, e)| f + e), Some(10));
    assert!(errors > Some(0) && frames > Some(0), "{counters:?}");

    let (a, _b) = pair();
    assert!(PcapngTee::new(a, FullSink { room_bytes: 10 }).is_err());
}
