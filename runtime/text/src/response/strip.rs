//! Takes white space off both ends of a text that comes in pieces.

/// Where that stands; keeps pieces as they are if it is off.
#[derive(Debug)]
pub(crate) struct Strip {
    on: bool,
    begun: bool,
    /// White space that ends the text so far.
    pending: String,
}

impl Strip {
    pub fn new(on: bool) -> Strip {
        Strip { on, begun: false, pending: String::new() }
    }

    /// What is certainly not at an end of the text.
    pub fn push(&mut self, piece: &str) -> String {
        if !self.on {
            return piece.to_owned();
        }
        let piece = if self.begun { piece } else { piece.trim_start() };
        let kept = piece.trim_end();
        if kept.is_empty() {
            self.pending.push_str(piece);
            return String::new();
        }
        self.begun = true;
        let mut out = std::mem::take(&mut self.pending);
        out.push_str(kept);
        self.pending.push_str(piece.get(kept.len()..).unwrap_or(""));
        out
    }

    /// Text before this place is nobody's business any more.
    pub fn forget(&mut self) {
        self.pending.clear();
    }
}
