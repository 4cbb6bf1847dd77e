//! Any bytes as a weight file: the header reader may refuse them but never panic, and every tensor it calls intact
//! lies inside the file with as many bytes as its shape needs, none of them shared while no fault is told.
//!
//! Each input is tried twice: as it is, and as JSON behind a length that fits, with as much data as its first two
//! bytes say, because chance rarely finds a length.
#![no_main]

use device::checkpoint::parse_header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if let Some((data_bytes, json)) = bytes.split_first_chunk::<2>() {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json);
        file.resize(file.len() + usize::from(u16::from_le_bytes(*data_bytes)), 0);
        check(&file);
    }
});

fn check(bytes: &[u8]) {
    let Ok(header) = parse_header(bytes) else {
        return;
    };
    let mut taken = 0u64;
    for tensor in header.tensors.iter().filter(|t| t.intact) {
        let range = tensor.range.start as usize..tensor.range.end as usize;
        let content = bytes.get(range).expect("an intact tensor lies inside the file");
        if let Some(bits) = tensor.dtype.bits() {
            let elements: u128 = tensor.shape.iter().map(|d| u128::from(*d)).product();
            assert_eq!(elements * u128::from(bits), content.len() as u128 * 8);
        }
        taken += content.len() as u64;
    }
    if header.faults.is_empty() {
        let start = header.tensors.iter().map(|t| t.range.start).min().unwrap_or(bytes.len() as u64);
        assert_eq!(taken, bytes.len() as u64 - start, "without a fault the tensors cover the data exactly");
    }
    for fault in &header.faults {
        assert!(!fault.to_string().contains('\n'));
    }
}
