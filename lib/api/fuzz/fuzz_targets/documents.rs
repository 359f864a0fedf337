//! No input panics. Documents that are read, written and read again stay the same: `hack/fuzz.sh lib/api documents`.
#![no_main]

use keelway_api::Documents;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(documents) = Documents::read(bytes) {
        let written = documents.write();
        assert_eq!(Documents::read(written.as_bytes()).unwrap().write(), written);
    }
});
