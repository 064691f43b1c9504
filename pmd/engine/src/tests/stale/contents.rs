//! Message contents of which every block identifies its message and its offset.

/// Bytes of a block: the name of the message and the number of the block.
pub(super) const BLOCK: usize = 16;

/// Identifies a message: its connection, the side that posted it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) connection: u16,
    pub(super) from: u8,
    pub(super) number: u32,
}

impl Name {
    fn to_bits(self) -> u64 {
        (u64::from(self.connection) << 48) | (u64::from(self.from) << 40) | u64::from(self.number)
    }

    fn from_bits(bits: u64) -> Self {
        Self {
            connection: (bits >> 48) as u16,
            from: (bits >> 40) as u8,
            number: bits as u32,
        }
    }

    /// Returns the contents of the whole message.
    pub(super) fn bytes(self, length_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length_bytes + BLOCK);
        for block in 0..length_bytes.div_ceil(BLOCK) as u64 {
            bytes.extend(self.to_bits().to_be_bytes());
            bytes.extend(block.to_be_bytes());
        }
        bytes.truncate(length_bytes);
        bytes
    }

    /// Returns the message that has these bytes at this offset; an error if no message has.
    pub(super) fn of(bytes: &[u8], offset_bytes: usize) -> Result<Self, String> {
        let head = bytes.first_chunk::<8>().ok_or("too short to have a name")?;
        let name = Self::from_bits(u64::from_be_bytes(*head));
        for (at, block) in bytes.chunks(BLOCK).enumerate() {
            let number = (offset_bytes / BLOCK + at) as u64;
            let mut expected = [0; BLOCK];
            expected[..8].copy_from_slice(&name.to_bits().to_be_bytes());
            expected[8..].copy_from_slice(&number.to_be_bytes());
            if !offset_bytes.is_multiple_of(BLOCK) || block != &expected[..block.len()] {
                return Err(format!("not the bytes of {name:?} at {offset_bytes}"));
            }
        }
        Ok(name)
    }
}

#[test]
fn contents_identify_message_and_offset() {
    let name = Name {
        connection: 3,
        from: 1,
        number: 70_000,
    };
    let bytes = name.bytes(100);
    assert_eq!(Name::of(&bytes[32..], 32), Ok(name));
    assert!(Name::of(&bytes[32..], 48).is_err());
    let other = Name { number: 1, ..name };
    let mixed = [&bytes[..48], &other.bytes(100)[48..]].concat();
    assert!(Name::of(&mixed, 0).is_err());
}
