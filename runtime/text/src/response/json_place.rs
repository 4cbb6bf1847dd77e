//! Where JSON text stands, as far as its strings go: inside them nothing is markup.

/// Where a JSON value stands, as far as its strings go.
#[derive(Debug, Default)]
pub(crate) struct JsonPlace {
    pub in_string: bool,
    escaped: bool,
    /// Offset of the next byte to read.
    pub pos: usize,
}

impl JsonPlace {
    /// At the start of a value whose text begins at that offset.
    pub fn at(pos: usize) -> JsonPlace {
        JsonPlace { pos, ..JsonPlace::default() }
    }

    /// Reads the next byte.
    pub fn read(&mut self, byte: u8) {
        self.pos += 1;
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            // No JSON string holds a bare control character, so this is not JSON.
            0..=0x1f => self.in_string = false,
            _ => {}
        }
    }
}
