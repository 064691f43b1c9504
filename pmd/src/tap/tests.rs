use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FCtl, FcType, RCtl};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::FrameHeader;
use pmd_port::loopback::{LoopbackConfig, LoopbackPort};

use super::*;

const FRAME_BYTES: usize = 100;

fn operator() -> Arc<Socket> {
    Arc::new(Socket::pair().unwrap().0)
}

/// Returns frames to the other port, each filled with its number.
fn frames(
    port: &mut LoopbackPort,
    other: &LoopbackPort,
    numbers: core::ops::Range<u8>,
) -> MbufBatch {
    let mut batch = MbufBatch::new();
    for number in numbers {
        let mac = other.capabilities().mac;
        let mut mbuf = port.alloc(mac).unwrap();
        mbuf.buffer_mut()[..FRAME_BYTES].fill(number);
        mbuf.buffer_mut()[..6].copy_from_slice(&mac);
        mbuf.set_len(FRAME_BYTES);
        batch.push(mbuf).unwrap();
    }
    batch
}

fn numbers(reader: &mut TapReader) -> Vec<u8> {
    core::iter::from_fn(|| reader.take(|frame| *frame.kept().last().unwrap())).collect()
}

#[test]
fn sent_and_received_frames_are_captured_and_truncated() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut reader) = tap(operator(), None, 60, 1 << 20);
    let mut batch = frames(&mut left, &right, 1..4);
    tap.send(&mut left, &mut batch);
    assert!(batch.is_empty(), "the port accepted them");
    for number in 1..4 {
        let seen = reader.take(|frame| {
            assert_eq!(frame.kept().len(), 60);
            assert_eq!(frame.direction, Direction::Outbound);
            (frame.original_bytes, frame.kept()[59])
        });
        assert_eq!(seen, Some((FRAME_BYTES as u32, number)));
    }
    assert!(reader.take(|_| ()).is_none());
    let mut received = MbufBatch::new();
    assert_eq!(right.rx_burst(&mut received, BURST), 3);
    tap.received(&received);
    let directions: Vec<_> = core::iter::from_fn(|| reader.take(|frame| frame.direction)).collect();
    assert_eq!(directions, [Direction::Inbound; 3]);
    while let Some(mbuf) = received.pop() {
        right.free(mbuf);
    }
    assert_eq!(reader.dropped(), 0);
    assert!(!reader.is_closed());
    drop(tap);
    assert!(reader.is_closed());
}

#[test]
fn frames_that_do_not_fit_are_counted_and_still_sent() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut reader) = tap(operator(), None, FRAME_BYTES, 0);
    let mut passed = 0;
    for round in 0..3u8 {
        let mut batch = frames(&mut left, &right, 20 * round..20 * round + 20);
        tap.send(&mut left, &mut batch);
        let mut received = MbufBatch::new();
        passed += right.rx_burst(&mut received, BURST);
        while let Some(mbuf) = received.pop() {
            right.free(mbuf);
        }
    }
    assert_eq!(passed, 60);
    assert_eq!(numbers(&mut reader), (0..BURST as u8).collect::<Vec<_>>());
    assert_eq!(reader.dropped(), 60 - BURST as u64);
    // Buffers are recycled.
    for _ in 0..10 {
        let mut batch = frames(&mut left, &right, 0..32);
        tap.send(&mut left, &mut batch);
        assert_eq!(numbers(&mut reader).len(), 32);
        let mut received = MbufBatch::new();
        right.rx_burst(&mut received, BURST);
        while let Some(mbuf) = received.pop() {
            right.free(mbuf);
        }
    }
    assert_eq!(reader.dropped(), 60 - BURST as u64);
}

#[test]
fn frame_that_the_port_does_not_accept_is_not_captured() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut reader) = tap(operator(), None, FRAME_BYTES, 0);
    let mut port = Reluctant {
        port: &mut left,
        accepts: 1,
    };
    let mut batch = frames(port.port, &right, 0..4);
    tap.send(&mut port, &mut batch);
    assert_eq!((batch.len(), numbers(&mut reader)), (3, vec![0]));
    port.accepts = 8;
    tap.send(&mut port, &mut batch);
    assert_eq!((batch.len(), numbers(&mut reader)), (0, vec![1, 2, 3]));
    let mut received = MbufBatch::new();
    assert_eq!(right.rx_burst(&mut received, BURST), 4);
    while let Some(mbuf) = received.pop() {
        right.free(mbuf);
    }
    assert_eq!(reader.dropped(), 0);
}

/// A port that accepts a limited number of frames of a burst.
struct Reluctant<'a> {
    port: &'a mut LoopbackPort,
    accepts: usize,
}

impl Port for Reluctant<'_> {
    fn capabilities(&self) -> &pmd_port::Capabilities {
        self.port.capabilities()
    }

    fn alloc(&mut self, dst: pmd_port::MacBytes) -> Option<Mbuf> {
        self.port.alloc(dst)
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let mut some = MbufBatch::new();
        while some.len() < self.accepts
            && let Some(mbuf) = batch.pop()
        {
            some.push(mbuf).unwrap();
        }
        self.port.tx_burst(&mut some)
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        self.port.rx_burst(batch, max)
    }

    fn free(&mut self, mbuf: Mbuf) {
        self.port.free(mbuf);
    }

    fn events(&mut self, out: &mut Vec<pmd_port::PortEvent>) -> bool {
        self.port.events(out)
    }

    fn arm(&mut self) -> pmd_port::WakeSource {
        self.port.arm()
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }

    fn stats(&self) -> pmd_port::PortStats {
        self.port.stats()
    }
}

/// Returns the N_Port_ID 00.00.`last`.
fn n_port_id(last: u8) -> NPortId {
    NPortId::from_bytes([0, 0, last])
}

/// Returns the headers of an FC frame from 00.00.01 to 00.00.02.
fn fc_frame() -> Vec<u8> {
    let header = FrameHeader {
        dst: MacAddress::vn2vn(n_port_id(2)),
        src: MacAddress::vn2vn(n_port_id(1)),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl: RCtl::ElsRequest,
            d_id: n_port_id(2),
            cs_ctl: 0,
            s_id: n_port_id(1),
            fc_type: FcType::Els,
            f_ctl: FCtl(0),
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id: 0,
            rx_id: 0,
            parameter: 0,
        },
        device: None,
    };
    let mut bytes = vec![0; FRAME_BYTES];
    header.emit(&mut bytes).unwrap();
    bytes
}

#[test]
fn frame_is_from_or_to_its_source_and_destination_only() {
    /// Ethernet, FCoE and FC headers.
    const HEADER_BYTES: usize = 52;
    let frame = fc_frame();
    for (last, expected) in [(0, false), (1, true), (2, true), (3, false)] {
        assert_eq!(is_from_or_to(&frame, n_port_id(last)), expected, "{last}");
    }
    for bytes in 0..frame.len() {
        let is_whole = bytes >= HEADER_BYTES;
        assert_eq!(is_from_or_to(&frame[..bytes], n_port_id(1)), is_whole);
    }
    let mut fip = frame;
    fip[13] = 0x14;
    assert!(!is_from_or_to(&fip, n_port_id(1)));
}

#[test]
fn frames_of_other_ports_use_no_buffers() {
    let (mut left, mut right) = LoopbackPort::pair(&LoopbackConfig::default()).unwrap();
    let (mut tap, mut reader) = tap(operator(), Some(n_port_id(1)), FRAME_BYTES, 0);
    for _ in 0..3 {
        let mut batch = frames(&mut left, &right, 0..20);
        tap.send(&mut left, &mut batch);
        let mut received = MbufBatch::new();
        right.rx_burst(&mut received, BURST);
        while let Some(mbuf) = received.pop() {
            right.free(mbuf);
        }
    }
    assert!(reader.take(|_| ()).is_none());
    assert_eq!(reader.dropped(), 0);
}

proptest::proptest! {
    #[test]
    fn arbitrary_frame_causes_no_panic(frame: Vec<u8>) {
        is_from_or_to(&frame, n_port_id(1));
    }
}
