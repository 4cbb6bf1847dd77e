//! What a cubin says of itself: registers, shared memory, stack. Read from its sections; nothing is run.

/// Resources of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory that the code declares.
    pub shared_bytes: u32,
    /// Bytes of local memory of a thread: spilled registers and arrays that are indexed as they run.
    pub stack_bytes: u32,
}

struct Section<'b> {
    name: &'b str,
    info: u32,
    size: u64,
    bytes: &'b [u8],
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(width)?)?;
    Some(part.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

fn sections(cubin: &[u8]) -> Option<Vec<Section<'_>>> {
    if cubin.get(..5)? != [0x7f, b'E', b'L', b'F', 2] {
        return None;
    }
    let (table, width) = (number(cubin, 0x28, 8)? as usize, number(cubin, 0x3a, 2)? as usize);
    let (count, names) = (number(cubin, 0x3c, 2)? as usize, number(cubin, 0x3e, 2)? as usize);
    let header = |i: usize| cubin.get(table.checked_add(i.checked_mul(width)?)?..);
    let range = |h: &[u8]| -> Option<(u64, u64)> { Some((number(h, 0x18, 8)?, number(h, 0x20, 8)?)) };
    let (start, size) = range(header(names)?)?;
    let strings = cubin.get(start as usize..(start.checked_add(size)?) as usize)?;
    let mut found = Vec::new();
    for i in 0..count {
        let h = header(i)?;
        let name = strings.get(number(h, 0, 4)? as usize..)?;
        let name = std::str::from_utf8(name.get(..name.iter().position(|b| *b == 0)?)?).ok()?;
        let (start, size) = range(h)?;
        // A section without bits has a size and no bytes.
        let bytes = if number(h, 4, 4)? == 8 {
            &[][..]
        } else {
            cubin.get(start as usize..start.checked_add(size)? as usize)?
        };
        found.push(Section { name, info: number(h, 0x2c, 4)? as u32, size, bytes });
    }
    Some(found)
}

/// Whether the file is as long as it says.
pub fn is_whole(cubin: &[u8]) -> bool {
    sections(cubin).is_some()
}

/// Resources of the kernel of this name; `None` if the cubin is damaged or has no such kernel.
pub fn resources(cubin: &[u8], kernel: &str) -> Option<Resources> {
    let sections = sections(cubin)?;
    let text = sections.iter().find(|s| s.name == format!(".text.{kernel}"))?;
    let shared = sections.iter().find(|s| s.name == format!(".nv.shared.{kernel}"));
    let mut out =
        Resources { registers: text.info >> 24, shared_bytes: shared.map_or(0, |s| s.size as u32), stack_bytes: 0 };
    let own = format!(".nv.info.{kernel}");
    for section in sections.iter().filter(|s| s.name == ".nv.info" || s.name == own) {
        for (attribute, value) in attributes(section.bytes) {
            match attribute {
                // Count of registers: symbol, number.
                0x2f => out.registers = out.registers.max(value.get(1).copied().unwrap_or(0)),
                // Size of a frame, least size of the stack: symbol, number.
                0x11 | 0x12 => out.stack_bytes = out.stack_bytes.max(value.get(1).copied().unwrap_or(0)),
                _ => {}
            }
        }
    }
    Some(out)
}

/// Attributes with their words, of those that have a size.
fn attributes(bytes: &[u8]) -> Vec<(u8, Vec<u32>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(form), Some(attribute), Some(size)) = (bytes.get(at), bytes.get(at + 1), number(bytes, at + 2, 2)) {
        at += 4;
        if *form == 4 {
            let words = (0..size as usize / 4).filter_map(|i| number(bytes, at + 4 * i, 4)).map(|w| w as u32);
            found.push((*attribute, words.collect()));
            at += size as usize;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_none() {
        assert_eq!(resources(b"", "k"), None);
        assert_eq!(resources(b"\x7fELF\x02", "k"), None);
        assert!(!is_whole(&[0x7f; 200]));
        let mut bytes = vec![0u8; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[0x3c] = 3;
        assert_eq!(resources(&bytes, "k"), None);
    }
}
