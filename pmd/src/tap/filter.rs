//! Capture filter: a boolean expression over fields of FCoE and FC-VI.
//!
//! ```text
//! expression  and { "or" and }          and   term { "and" term }
//! term        "not" term | "(" expression ")" | flag | field ("==" | "!=") value
//! ```
//! `&&`, `||` and `!` are synonyms. A frame without the field of a comparison matches
//! neither `==` nor `!=`.
//!
//! Not the language of pcap-filter(7): that has no names for fields after the FCoE header, so that
//! filters would contain byte offsets, and its compiler is a C library in a process that may have
//! access to network hardware. Captured frames can be filtered further by any reader of pcapng.

use fcvi_frame::NPortId;
use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::{ETHERTYPE_FCOE, ETHERTYPE_FIP, EthernetHeader};
use fcvi_frame::fc::{FcHeader, FcType, RCtl};
use fcvi_frame::fcoe::FCOE_HEADER_BYTES;
use pmd_port::layer::pcapng::format::Direction;

/// Maximum length of an expression in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// Maximum number of flags and comparisons, which limits the work per frame.
const MAX_TERMS: usize = 32;
/// Maximum nesting depth of parentheses and `not`.
const MAX_DEPTH: usize = 16;

/// A parsed filter expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Anything,
    Flag(Flag),
    Field {
        field: Field,
        equal: bool,
        value: u32,
    },
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

/// A boolean property of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    In,
    Out,
    Fcoe,
    Fip,
    Vi,
    Els,
    Bls,
}

const FLAGS: [(&str, Flag); 7] = [
    ("in", Flag::In),
    ("out", Flag::Out),
    ("fcoe", Flag::Fcoe),
    ("fip", Flag::Fip),
    ("vi", Flag::Vi),
    ("els", Flag::Els),
    ("bls", Flag::Bls),
];

/// A field of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    EtherType,
    NPortId,
    SId,
    DId,
    OxId,
    RxId,
    RCtl,
    Type,
    Handle,
    Opcode,
    MessageId,
}

/// Names and widths in bits of the fields.
const FIELDS: [(&str, Field, u32); 11] = [
    ("ethertype", Field::EtherType, 16),
    ("n_port_id", Field::NPortId, 24),
    ("s_id", Field::SId, 24),
    ("d_id", Field::DId, 24),
    ("ox_id", Field::OxId, 16),
    ("rx_id", Field::RxId, 16),
    ("r_ctl", Field::RCtl, 8),
    ("type", Field::Type, 8),
    ("handle", Field::Handle, 32),
    ("opcode", Field::Opcode, 8),
    ("msg_id", Field::MessageId, 32),
];

/// A parsed capture filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter(Expression);

impl Filter {
    /// Parses an expression; an empty one matches all frames.
    ///
    /// # Errors
    /// A text with the error and its position.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("longer than {MAX_TEXT_BYTES} bytes"));
        }
        let mut parser = Parser {
            text,
            at: 0,
            terms: 0,
        };
        if parser.peek().is_empty() {
            return Ok(Self(Expression::Anything));
        }
        let expression = parser.parse_or(0)?;
        match parser.peek() {
            "" => Ok(Self(expression)),
            word => Err(format!(
                "unexpected {word:?} at {}: join terms by \"and\" or \"or\"",
                parser.at
            )),
        }
    }

    /// Returns whether a frame matches.
    pub(crate) fn matches(&self, frame: &[u8], direction: Direction) -> bool {
        self.0 == Expression::Anything || self.0.matches(&Fields::of(frame, direction))
    }
}

impl Expression {
    fn matches(&self, frame: &Fields) -> bool {
        match self {
            Self::Anything => true,
            Self::Flag(flag) => frame.is(*flag),
            Self::Field {
                field,
                equal,
                value,
            } => frame.compare(*field, *value) == Some(*equal),
            Self::Not(term) => !term.matches(frame),
            Self::And(a, b) => a.matches(frame) && b.matches(frame),
            Self::Or(a, b) => a.matches(frame) || b.matches(frame),
        }
    }
}

/// The parsed headers of a frame.
struct Fields {
    direction: Direction,
    ethertype: Option<u16>,
    fc: Option<FcHeader>,
    device: Option<DeviceHeader>,
}

impl Fields {
    fn of(frame: &[u8], direction: Direction) -> Self {
        let ethernet = EthernetHeader::parse(frame).ok();
        let fc_at = ethernet
            .filter(|(header, _)| header.ethertype == ETHERTYPE_FCOE)
            .map(|(_, bytes)| bytes + FCOE_HEADER_BYTES);
        let rest = fc_at.and_then(|at| frame.get(at..)).unwrap_or_default();
        let fc = rest.split_first_chunk::<{ FcHeader::BYTES }>();
        let (fc, data) = fc.map_or((None, [].as_slice()), |(fc, data)| {
            (Some(FcHeader::parse(fc)), data)
        });
        let is_vi = fc.is_some_and(|fc| fc.fc_type == FcType::Vi);
        let device = is_vi.then(|| DeviceHeader::parse(data).ok()).flatten();
        Self {
            direction,
            ethertype: ethernet.map(|(header, _)| header.ethertype),
            fc,
            device: device.map(|(header, _)| header),
        }
    }

    fn is(&self, flag: Flag) -> bool {
        let r_ctl = self.fc.map(|fc| fc.r_ctl);
        match flag {
            Flag::In => self.direction == Direction::Inbound,
            Flag::Out => self.direction == Direction::Outbound,
            Flag::Fcoe => self.ethertype == Some(ETHERTYPE_FCOE),
            Flag::Fip => self.ethertype == Some(ETHERTYPE_FIP),
            Flag::Vi => self.fc.is_some_and(|fc| fc.fc_type == FcType::Vi),
            Flag::Els => matches!(r_ctl, Some(RCtl::ElsRequest | RCtl::ElsReply)),
            Flag::Bls => matches!(r_ctl, Some(RCtl::Abts | RCtl::BaAcc | RCtl::BaRjt)),
        }
    }

    /// Returns whether the field has this value; `None` if the frame has no such field.
    fn compare(&self, field: Field, value: u32) -> Option<bool> {
        let fc = || self.fc;
        let device = || self.device;
        let found = match field {
            Field::EtherType => u32::from(self.ethertype?),
            Field::NPortId => {
                let fc = fc()?;
                return Some(fc.s_id.get() == value || fc.d_id.get() == value);
            }
            Field::SId => fc()?.s_id.get(),
            Field::DId => fc()?.d_id.get(),
            Field::OxId => fc()?.ox_id.into(),
            Field::RxId => fc()?.rx_id.into(),
            Field::RCtl => fc()?.r_ctl.raw().into(),
            Field::Type => fc()?.fc_type.raw().into(),
            Field::Handle => device()?.handle,
            Field::Opcode => device()?.opcode.raw().into(),
            Field::MessageId => device()?.msg_id,
        };
        Some(found == value)
    }
}

/// Tokenizer and recursive-descent parser.
struct Parser<'a> {
    text: &'a str,
    /// Offset of the next token in bytes.
    at: usize,
    terms: usize,
}

impl<'a> Parser<'a> {
    /// Returns the next token without consuming it; empty at the end.
    fn peek(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let word = rest.trim_start();
        self.at = self.text.len() - word.len();
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        let bytes = match word.chars().next() {
            None => 0,
            Some(c) if is_of_word(c) => word.find(|c| !is_of_word(c)).unwrap_or(word.len()),
            Some(_)
                if ["==", "!=", "&&", "||"]
                    .iter()
                    .any(|sign| word.starts_with(sign)) =>
            {
                2
            }
            Some(c) => c.len_utf8(),
        };
        word.get(..bytes).unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let word = self.peek();
        self.at += word.len();
        word
    }

    /// Consumes the next token if it is one of these.
    fn accept(&mut self, words: [&str; 2]) -> bool {
        let found = words.contains(&self.peek());
        if found {
            self.next();
        }
        found
    }

    fn parse_or(&mut self, depth: usize) -> Result<Expression, String> {
        let mut expression = self.parse_and(depth)?;
        while self.accept(["or", "||"]) {
            let other = self.parse_and(depth)?;
            expression = Expression::Or(Box::new(expression), Box::new(other));
        }
        Ok(expression)
    }

    fn parse_and(&mut self, depth: usize) -> Result<Expression, String> {
        let mut expression = self.parse_term(depth)?;
        while self.accept(["and", "&&"]) {
            let other = self.parse_term(depth)?;
            expression = Expression::And(Box::new(expression), Box::new(other));
        }
        Ok(expression)
    }

    fn parse_term(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH}"));
        }
        if self.accept(["not", "!"]) {
            return Ok(Expression::Not(Box::new(self.parse_term(depth + 1)?)));
        }
        if self.accept(["(", "("]) {
            let inside = self.parse_or(depth + 1)?;
            if self.accept([")", ")"]) {
                return Ok(inside);
            }
            return Err(format!("missing \")\" at {}", self.at));
        }
        self.terms += 1;
        if self.terms > MAX_TERMS {
            return Err(format!("more than {MAX_TERMS} terms"));
        }
        let name = self.peek();
        let at = self.at;
        self.next();
        if let Some((_, flag)) = FLAGS.iter().find(|(word, _)| *word == name) {
            return Ok(Expression::Flag(*flag));
        }
        match FIELDS.iter().find(|(word, ..)| *word == name) {
            Some((_, field, bits)) => self.parse_comparison(name, *field, *bits),
            None if name.is_empty() => Err("missing term at the end".to_owned()),
            None => Err(format!(
                "unknown flag or field {name:?} at {at}: must be one of {}",
                known_names()
            )),
        }
    }

    fn parse_comparison(
        &mut self,
        name: &str,
        field: Field,
        bits: u32,
    ) -> Result<Expression, String> {
        let equal = match self.next() {
            "==" => true,
            "!=" => false,
            _ => return Err(format!("{name} requires == or != and a value")),
        };
        let word = self.next();
        let number = match word.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None if word.contains('.') => word.parse().ok().map(NPortId::get),
            None => word.parse().ok(),
        };
        let fits = |value: &u32| u64::from(*value) < 1 << bits;
        let value = number.filter(fits).ok_or_else(|| {
            let dotted = if bits == 24 { ", or as 00.01.02" } else { "" };
            format!(
                "invalid value {word:?} of {name}: must have {bits} bits, decimal or 0x...{dotted}"
            )
        })?;
        Ok(Expression::Field {
            field,
            equal,
            value,
        })
    }
}

/// Returns the names of all flags and fields.
fn known_names() -> String {
    let flags = FLAGS.iter().map(|(word, _)| *word);
    let fields = FIELDS.iter().map(|(word, ..)| *word);
    flags.chain(fields).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use fcvi_frame::MacAddress;
    use fcvi_frame::fc::FCtl;
    use fcvi_frame::fcoe::Sof;
    use fcvi_frame::frame::FrameHeader;
    use fcvi_frame::iu::Opcode;

    use super::*;

    /// Returns the start of a frame of a send from 00.01.02 to 00.02.01.
    fn send() -> Vec<u8> {
        let id = |id| NPortId::new(id).unwrap();
        let header = FrameHeader {
            dst: MacAddress::vn2vn(id(0x201)),
            src: MacAddress::vn2vn(id(0x102)),
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: RCtl::UnsolicitedData,
                d_id: id(0x201),
                cs_ctl: 0,
                s_id: id(0x102),
                fc_type: FcType::Vi,
                f_ctl: FCtl(0),
                seq_id: 0,
                df_ctl: 0,
                seq_cnt: 0,
                ox_id: 0x1234,
                rx_id: 0xFFFF,
                parameter: 0,
            },
            device: Some(DeviceHeader {
                handle: 0xDEAD_BEEF,
                opcode: Opcode::SendRequest,
                flags: 0,
                msg_id: 77,
                parameter: 0,
                rmt_va: 0,
                rmt_va_handle: 0,
                tot_len: 0,
            }),
        };
        let mut bytes = vec![0; 128];
        header.emit(&mut bytes).unwrap();
        bytes
    }

    fn with(at: usize, byte: u8) -> Vec<u8> {
        let mut frame = send();
        frame[at] = byte;
        frame
    }

    fn fits(text: &str, frame: &[u8]) -> bool {
        let filter = Filter::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        filter.matches(frame, Direction::Outbound)
    }

    #[test]
    fn flags_and_fields_match_the_frame() {
        for text in [
            "",
            "  ",
            "out",
            "fcoe",
            "vi",
            "not in",
            "!fip",
            "not els",
            "not bls",
            "ethertype == 0x8906",
            "s_id == 00.01.02",
            "d_id==0x201",
            "d_id == 513",
            "n_port_id == 00.01.02",
            "n_port_id == 00.02.01",
            "ox_id == 0x1234",
            "rx_id == 65535",
            "r_ctl == 4",
            "type == 0x58",
            "handle == 0xdeadbeef",
            "opcode == 1",
            "msg_id == 77",
            "s_id != 00.02.01",
        ] {
            assert!(fits(text, &send()), "{text}");
        }
        for text in [
            "in",
            "fip",
            "els",
            "bls",
            "not vi",
            "ethertype != 0x8906",
            "s_id == 00.02.01",
            "d_id == 00.01.02",
            "n_port_id == 00.00.01",
            "ox_id == 1",
            "rx_id == 0",
            "r_ctl == 0x22",
            "type == 1",
            "handle == 0",
            "opcode == 2",
            "msg_id == 78",
        ] {
            assert!(!fits(text, &send()), "{text}");
        }
    }

    #[test]
    fn flags_distinguish_frame_types() {
        const ETHERTYPE_AT: usize = 12;
        const R_CTL_AT: usize = 28;
        const TYPE_AT: usize = 36;
        let fip = with(ETHERTYPE_AT + 1, 0x14);
        assert!(fits("fip and not fcoe and not vi", &fip));
        for r_ctl in [0x22, 0x23] {
            assert!(fits("els and not bls", &with(R_CTL_AT, r_ctl)));
        }
        for r_ctl in [0x81, 0x84, 0x85] {
            assert!(fits("bls and not els", &with(R_CTL_AT, r_ctl)));
        }
        // Comparisons of FC-VI fields are false for a frame without an FC-VI header.
        let other = with(TYPE_AT, 1);
        for text in [
            "handle == 0xdeadbeef",
            "handle != 0xdeadbeef",
            "opcode == 1",
            "msg_id != 1",
        ] {
            assert!(!fits(text, &other), "{text}");
        }
        assert!(fits("not handle == 0xdeadbeef", &other));
    }

    #[test]
    fn and_binds_closer_than_or() {
        assert!(fits("vi or vi and fip", &send()));
        assert!(!fits("(vi or vi) and fip", &send()));
        assert!(fits("fip and fip || vi", &send()));
        assert!(fits("not (fip or in) && vi", &send()));
        assert!(!fits("not fip and in", &send()));
    }

    #[test]
    fn truncated_frames_have_fewer_fields() {
        let filter = Filter::parse(
            "not (s_id == 1 or handle == 1 or ethertype == 1 or els or vi and msg_id == 1)",
        );
        let filter = filter.unwrap();
        for bytes in 0..send().len() {
            assert!(
                filter.matches(&send()[..bytes], Direction::Inbound),
                "{bytes}"
            );
        }
        assert!(!fits("s_id == 00.01.02", &send()[..51]));
        assert!(fits("s_id == 00.01.02", &send()[..52]));
        assert!(!fits("handle == 0xdeadbeef", &send()[..60]));
    }

    #[test]
    fn parse_errors_name_the_error_and_its_position() {
        let nested = format!("{}vi{}", "(".repeat(17), ")".repeat(17));
        let many = ["vi"; 33].join(" or ");
        for (text, expected) in [
            (
                "sid == 1",
                "unknown flag or field \"sid\" at 0: must be one of in, out, fcoe",
            ),
            ("vi and", "missing term at the end"),
            ("vi fip", "unexpected \"fip\" at 3"),
            ("vi )", "unexpected \")\" at 3"),
            ("(vi", "missing \")\" at 3"),
            ("s_id", "s_id requires == or != and a value"),
            ("s_id = 1", "s_id requires == or != and a value"),
            (
                "ox_id == 65536",
                "invalid value \"65536\" of ox_id: must have 16 bits",
            ),
            ("ox_id == 0.0.1", "invalid value \"0.0.1\" of ox_id"),
            (
                "s_id == 0x1000000",
                "24 bits, decimal or 0x..., or as 00.01.02",
            ),
            ("handle == -1", "invalid value \"-\" of handle"),
            ("handle ==", "invalid value \"\" of handle"),
            ("not", "missing term"),
            ("é", "unknown flag or field"),
            (&nested, "nested deeper than 16"),
            (&"!".repeat(1000), "nested deeper than 16"),
            (&many, "more than 32 terms"),
            (&"x".repeat(1025), "longer than 1024 bytes"),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_texts_and_frames_cause_no_panic(text in ".{0,80}", frame: Vec<u8>) {
            if let Ok(filter) = Filter::parse(&text) {
                filter.matches(&frame, Direction::Inbound);
            }
        }
    }
}
