//! The header reader against crafted headers and against the format's own library.

use device::checkpoint::parse_header;
use safetensors::SafeTensors;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

/// What is told about a header of these entries; the library must refuse the same file, and accept what we accept.
fn told(entries: &[String], data: usize) -> Vec<String> {
    let bytes = file(&format!("{{{}}}", entries.join(",")), data);
    let ours = match parse_header(&bytes) {
        Ok(header) => header.faults.iter().map(|f| format!("{} {f}", f.code())).collect(),
        Err(fault) => vec![format!("{} {fault}", fault.code())],
    };
    let library = SafeTensors::deserialize(&bytes);
    assert_eq!(ours.is_empty(), library.is_ok(), "{ours:?} {:?}", library.err());
    ours
}

#[test]
fn a_good_header_is_read_like_the_library_reads_it() {
    let entries = [
        r#""__metadata__":{"format":"pt"}"#.to_owned(),
        entry("a", "F32", "[2,2]", 0, 16),
        entry("empty", "BF16", "[0,7]", 16, 16),
        entry("scalar", "F16", "[]", 16, 18),
        entry("four", "F4", "[4]", 18, 20),
    ];
    assert!(told(&entries, 20).is_empty());
    let bytes = file(&format!("{{{}}}   ", entries.join(",")), 20);
    let ours = parse_header(&bytes).unwrap();
    let library = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(ours.tensors.len(), library.len());
    for tensor in &ours.tensors {
        let view = library.tensor(&tensor.name).unwrap();
        let bytes = &bytes[tensor.range.start as usize..tensor.range.end as usize];
        assert_eq!(view.data().as_ptr_range(), bytes.as_ptr_range());
        assert_eq!(view.shape().iter().map(|d| *d as u64).collect::<Vec<_>>(), tensor.shape);
    }
}

#[test]
fn lengths_are_checked_before_use() {
    let code = |bytes: &[u8]| parse_header(bytes).unwrap_err().to_string();
    assert_eq!(code(b"1234567"), "the file has 7 bytes, a safetensors file has at least 8");
    assert_eq!(code(&[9, 0, 0, 0, 0, 0, 0, 0, b'{']), "the header is said to have 9 bytes, the file has 9 in all");
    assert_eq!(
        code(&u64::MAX.to_le_bytes()),
        "the header is said to have 18446744073709551615 bytes, at most 100000000 are read"
    );
}

#[test]
fn sizes_and_offsets_are_checked() {
    assert_eq!(
        told(&[entry("a", "BF16", "[3]", 0, 4)], 4),
        ["W0207 tensor `a` (BF16 [3]) has 4 bytes, its shape needs 6"]
    );
    assert_eq!(
        told(&[entry("a", "F4", "[3]", 0, 2)], 2),
        ["W0207 tensor `a` (F4 [3]) has 2 bytes, its shape needs 1 and 4 bits"]
    );
    assert_eq!(
        told(&[entry("a", "F32", "[18446744073709551615,18446744073709551615]", 0, 4)], 4),
        [
            "W0207 tensor `a` (F32 [18446744073709551615, 18446744073709551615]) has 4 bytes, its shape needs more than 2^64 bits"
        ]
    );
    assert_eq!(
        told(&[entry("a", "BF16", "[1]", 4, 2)], 4)[0],
        "W0206 tensor `a` starts at byte 4 of the data and ends at 2"
    );
    assert_eq!(
        told(&[entry("a", "U8", "[8]", 0, 8)], 7),
        ["W0208 tensor `a` (U8 [8]) ends at byte 8 of the data, the file has 7: it is truncated"]
    );
    for [start, end] in [[u64::MAX, u64::MAX], [u64::MAX - 1, u64::MAX], [0, u64::MAX], [u64::MAX, 0]] {
        assert!(!told(&[entry("a", "U8", "[1]", start, end)], 1).is_empty());
    }
}

#[test]
fn overlaps_and_holes_are_told() {
    assert_eq!(
        told(&[entry("a", "U8", "[4]", 0, 4), entry("b", "U8", "[4]", 2, 6)], 6),
        ["W0209 tensor `b` starts at byte 2 of the data, inside `a`, which ends at 4"]
    );
    assert_eq!(
        told(&[entry("a", "U8", "[1]", 0, 1), entry("b", "U8", "[1]", 3, 4)], 4),
        ["W0210 bytes 1 to 3 of the data belong to no tensor"]
    );
    assert_eq!(told(&[entry("a", "U8", "[1]", 0, 1)], 9), ["W0210 bytes 1 to 9 of the data belong to no tensor"]);
    assert_eq!(told(&[], 1), ["W0210 bytes 0 to 1 of the data belong to no tensor"]);
}

/// The library keeps the last of two entries of one name; here that is an error.
#[test]
fn a_name_that_stands_twice_is_told() {
    let header = format!("{{{},{}}}", entry("a", "U8", "[1]", 0, 1), entry("a", "U8", "[1]", 1, 2));
    let faults = parse_header(&file(&header, 2)).unwrap().faults;
    assert_eq!(faults[0].to_string(), "tensor `a` is in the header twice");
}

#[test]
fn a_format_that_nobody_knows_is_kept_by_name() {
    let header = format!("{{{}}}", entry("a", "Q3_K", "[8]", 0, 3));
    let header = parse_header(&file(&header, 3)).unwrap();
    assert!(header.faults.is_empty());
    assert_eq!(header.tensors[0].dtype.to_string(), "Q3_K");
}

#[test]
fn json_that_is_no_header_is_told_with_its_place() {
    for text in [
        "",
        "{",
        "[]",
        "7",
        r#"{"a":1}"#,
        r#"{"a":{}}"#,
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}",
    ] {
        let fault = parse_header(&file(text, 0)).unwrap_err();
        assert_eq!(fault.code(), "W0204", "{text:?}: {fault}");
        assert!(!fault.to_string().contains("struct"), "{fault}");
    }
    assert_eq!(parse_header(&file(&"[".repeat(1 << 20), 0)).unwrap_err().code(), "W0204");
    let deep = format!("{{\"__metadata__\":{}}}", "[".repeat(1 << 20));
    assert_eq!(parse_header(&file(&deep, 0)).unwrap_err().code(), "W0204");
}
